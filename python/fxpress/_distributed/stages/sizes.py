"""Tell how many bytes a value takes, by its metadata."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import Any

import torch
from torch.fx import Node

from fxpress._torch.tracking import size_hint

_NUMBER = 8  # bytes of an integer or a float


def value_of(node: Node) -> Any:
    """Return what the metadata says of a node's value."""
    return node.meta.get("val")


def bytes_of(node: Node) -> int:
    """Return the bytes of a node's value: of a tensor, a number, or tensors of a list.

    A size that is a symbol is the one that the program was exported with; 1 where none is known.
    """
    return _bytes(value_of(node))


def size_of(size: Any) -> int:
    """Return a size as a number; for a symbol, that of the example."""
    if type(size) is int:
        return size
    hint = size_hint(size)
    return 1 if hint is None else hint


def storage_of(value: Any) -> Hashable:
    """Return what is equal for tensors of one storage."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return int(value.untyped_storage()._cdata)
    return "object", id(value)


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return prod(map(size_of, value.shape)) * int(value.dtype.itemsize)
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    is_number = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))
    return _NUMBER if is_number else 0
