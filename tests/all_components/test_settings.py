"""Settings of torch that change results of its functions change fxpress's results equally."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import config as dynamo_config
from torch._export import config as export_config
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config
from torch.export import Dim, export
from torch.fx import config as fx_config
from torch.fx.experimental import _config as symbol_config

from fxpress._torch.decompose import changed_setting
from tests.support.captured import outcome
from tests.support.decompose_cases import assert_fresh_as_torch
from tests.support.programs import assert_exports_as_torch
from tests.support.sampled import sampled

# Settings of Dynamo and Inductor that an export or a decomposition reads.
READ: list[tuple[ModuleType, str]] = [
    (dynamo_config, "canonicalize_output_graph_node_order"),
    (dynamo_config, "do_not_emit_runtime_asserts"),
    (dynamo_config, "install_free_tensors"),
    (dynamo_config, "skip_fsdp_guards"),
    (dynamo_config, "use_legacy_dynamo_graph_capture"),
    (inductor_config, "emulate_precision_casts"),
    (inductor_config, "fallback_random"),
    (functorch_config, "functionalize_rng_ops"),
    (functorch_config, "fake_tensor_propagate_real_tensors"),
    (fx_config, "do_not_emit_stack_traces"),
    (symbol_config, "use_duck_shape"),
    (symbol_config, "backed_size_oblivious"),
]
# The first needs z3, the second is for torch's own tests, the third is not a setting.
LEFT_OUT = ("translation_validation", "_test_disable_functionalization", "TYPE_CHECKING")


def _flags() -> list[tuple[ModuleType, str]]:
    """Settings that are True or False, of the modules that the replaced functions read."""
    found = [(module, name) for module, name in READ if hasattr(module, name)]
    others = [
        (module, name)
        for module in (functorch_config, symbol_config, fx_config, export_config)
        for name in getattr(module, "_config", vars(module))
        if type(getattr(module, name, None)) is bool and name not in LEFT_OUT
    ]
    return found + sampled([pair for pair in others if pair not in found], 24, seed=0)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.cat([x[:, : x.shape[1] // 2], x[:, x.shape[1] // 2 :]], 1)
        return nn.functional.dropout(self.linear(self.norm(parts)).relu(), 0.5) + x.shape[0]


@pytest.mark.slow("each case is done by torch too")
@pytest.mark.parametrize(("module", "name"), _flags(), ids=lambda x: getattr(x, "__name__", x))
def test_a_flag(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if hasattr(module, "patch"):
        with module.patch(name, not getattr(module, name)):
            assert_as_torch()
    else:
        monkeypatch.setattr(module, name, not getattr(module, name))
        assert_as_torch()


def assert_as_torch() -> None:
    torch.manual_seed(0)
    model, args = nn.Sequential(Block(), Block()), (torch.rand(3, 6, 4),)
    for shapes in (None, ({0: Dim.AUTO, 1: Dim.AUTO},)):
        # The source has numbers of nodes where it has marks for profilers.
        assert_exports_as_torch(model, args, dynamic_shapes=shapes, stale=None)
        exported = functools.partial(export, model, args, dynamic_shapes=shapes)
        if not isinstance(outcome(exported), Exception):
            assert_fresh_as_torch(exported)


def test_a_setting_that_was_changed_for_a_while() -> None:
    with dynamo_config.patch(do_not_emit_runtime_asserts=True):
        pass
    assert changed_setting() is None
    with dynamo_config.patch(do_not_emit_runtime_asserts=True):
        assert changed_setting() == "torch._dynamo.config.do_not_emit_runtime_asserts"
