"""The module that stands around a callable while Dynamo traces it."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._torch.capture import ExportTracerOutput, as_traced_by_torch
from fxpress._torch.fx import pytree


class ModuleToTrace(torch.nn.Module):  # type: ignore[misc]
    """Take flat inputs, and return flat outputs with the spec of the callable's result.

    Stands in for `torch._dynamo.functional_export.ModuleToTrace`.

    Args:
        foo: the callable.
        in_spec: the spec of its `(args, kwargs)`.

    Example:
        >>> from torch.utils import _pytree
        >>> from fxpress.functional_export import ModuleToTrace
        >>> flat, spec = _pytree.tree_flatten(((x,), {}))
        >>> len(ModuleToTrace(model, spec)(*flat).flat_args)
        1
    """

    def __init__(self, foo: Any, in_spec: Any) -> None:
        super().__init__()
        self._export_root = foo
        self.in_spec = in_spec

    # Its local names matter: names of inputs and outputs in the captured graph come from them.
    @as_traced_by_torch
    def forward(self, *flat_args: Any) -> Any:
        args, kwargs = pytree.tree_unflatten(flat_args, self.in_spec)
        res = self._export_root(*args, **kwargs)
        out_flat, out_spec = pytree.tree_flatten(res)
        return ExportTracerOutput(out_flat, out_spec)
