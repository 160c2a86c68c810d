"""The measured variants of split."""

from __future__ import annotations

from torch.fx import GraphModule
from torch.fx._lazy_graph_module import _use_lazy_graph_module
from torch.fx.passes import split_module as torch_splitting

from fxpress import split_module as fxpress_splitting
from graphs import Case


def ours(case: Case) -> GraphModule:
    return fxpress_splitting.split_module(case.module, None, case.ids.__getitem__)


def torch_default(case: Case) -> GraphModule:
    return torch_splitting.split_module(case.module, None, case.ids.__getitem__)


def torch_lazy(case: Case) -> GraphModule:
    """Return torch's split with lazy GraphModules, which compile their code on first use."""
    with _use_lazy_graph_module(True):
        return torch_default(case)


def ours_simple(case: Case) -> GraphModule:
    return fxpress_splitting.split_module_simple(case.module, case.ids)


def torch_simple(case: Case) -> GraphModule:
    return torch_splitting.split_module_simple(case.module, case.ids)
