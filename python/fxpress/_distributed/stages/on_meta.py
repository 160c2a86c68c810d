"""Call the operator of a node with tensors that have no data."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch.fx import Node

from fxpress._distributed.stages.ends import size_of
from fxpress._torch.decompose import pytree

_PLAIN = {type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout}


class Arguments:
    """An operator's arguments, with tensors replaced by meta tensors and symbols by their hints."""

    def __init__(self, node: Node) -> None:
        self._target = node.target
        described = torch.fx.node.map_arg(
            (node.args, node.kwargs), lambda each: each.meta.get("val")
        )
        self.args, self.kwargs = pytree.tree_map(_on_meta, described)

    def call(self) -> Any:
        """Return the result; None for an operator that needs data, or that has no result."""
        try:
            with torch.no_grad():
                return self._target(*self.args, **self.kwargs)
        except (NotImplementedError, RuntimeError, TypeError, ValueError):
            return None


def call_key(node: Node) -> Hashable:
    """Return a key that is equal for calls of the same operator with the same `Arguments`."""
    key = (node.target, *map(_layout, node.args))
    if node.kwargs:
        key += (_layout(node.kwargs),)
    try:
        hash(key)
    except TypeError:  # symbols cannot be hashed
        return _hinted(key)
    return key


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors of nested lists, tuples and dictionaries."""
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def _layout(value: Any) -> Any:
    if isinstance(value, Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return value.dtype, value.shape, _strides(value)
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if isinstance(value, (tuple, list)):
        return kind, *map(_layout, value)
    if isinstance(value, dict):
        return kind, *((key, _layout(each)) for key, each in value.items())
    return value if kind is torch.SymInt else repr(value)


def _strides(tensor: torch.Tensor) -> Any:
    try:
        return tensor.stride()
    except RuntimeError:  # the layout is not strided
        return ()


def _hinted(layout: Any) -> Hashable:
    """Return a layout with numbers in place of symbols."""
    if isinstance(layout, tuple):
        return tuple(map(_hinted, layout))
    return size_of(layout) if isinstance(layout, torch.SymInt) else layout


def _on_meta(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        sizes = [size_of(size) for size in value.shape]
        if value.layout is not torch.strided:
            return torch.empty(sizes, dtype=value.dtype, device="meta")
        strides = [size_of(stride) for stride in value.stride()]
        return torch.empty_strided(sizes, strides, dtype=value.dtype, device="meta")
    return size_of(value) if isinstance(value, torch.SymInt) else value
