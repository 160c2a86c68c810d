"""Call the operator of a node with tensors that have no data."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from fxpress._torch.decompose import pytree
from fxpress._torch.tracking import size_hint


class Arguments:
    """What an operator is given, as tensors on the meta device with the sizes of the metadata.

    Sizes that are symbols are those that the program was exported with.

    Args:
        node: a call of an operator.

    Attributes:
        key: equal for calls of the same operator with the same sizes.
    """

    def __init__(self, node: Node) -> None:
        self._target = node.target
        described = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda each: each.meta.get("val")
        )
        self.args, self.kwargs = pytree.tree_map(_on_meta, described)
        layout = [
            (tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors_in(self.given())
        ]
        self.key = (node.target, repr((self.args, self.kwargs, layout)))

    def given(self) -> Any:
        """Return all arguments."""
        return self.args, self.kwargs

    def call(self) -> Any:
        """Return the result; None for an operator that needs data, or that has no result."""
        try:
            with torch.no_grad():
                return self._target(*self.args, **self.kwargs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return None


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of nested lists, tuples and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            return torch.empty([_size(s) for s in value.shape], dtype=value.dtype, device="meta")
        return torch.empty_strided(
            [_size(size) for size in value.shape],
            [_size(stride) for stride in value.stride()],
            dtype=value.dtype,
            device="meta",
        )
    return _size(value) if isinstance(value, torch.SymInt) else value


def _size(size: Any) -> int:
    hint = size_hint(size)
    return 1 if hint is None else hint
