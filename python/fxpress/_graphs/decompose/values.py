"""Describe the values of the decomposed program before its nodes are created."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from fxpress._torch import symbols as compat


class UnsafeError(Exception):
    """Raised if a program needs a full trace; the message is the reason in `decompose.report()`."""


# A size, a stride or an offset: an int, or the sympy expression of a SymInt.
Size = Any


class ByIdentity:
    """Base of named tuples that compare and hash by identity.

    As dict keys, they are cheaper than `id(value)`, because each call of `id` runs audit hooks.
    """

    __slots__ = ()
    __hash__ = object.__hash__
    __eq__ = object.__eq__
    __ne__ = object.__ne__


class _Facts(NamedTuple):
    shape: tuple[Size, ...]
    strides: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    offset: Size
    wrapper_requires_grad: bool  # of the FunctionalTensor, which autograd sees
    requires_grad: bool  # of the fake tensor inside, which kernels below autograd read
    is_symbolic: bool  # whether a size, a stride or the offset is an expression


class Facts(ByIdentity, _Facts):
    """All metadata that a trace can read of a tensor. `shared` maps equal Facts to one object."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class Storage:
    """A storage of the decomposed program."""

    nbytes: Size  # the size in bytes
    made: Any = None  # torch's storage object, once it was created
    state: Any = None  # a real tensor with this storage, if there is one
    has_moved: bool = False  # whether its tensors had other metadata in the run before the trace


@dataclass(slots=True, eq=False)
class Value:
    """A tensor of the decomposed program."""

    node: int  # the number of the tensor's node in the new trace, before dead code elimination
    facts: Facts
    storage: Storage
    is_base: bool = False  # whether functionalization knows that the tensor is not a view
    is_written: bool = False  # whether a call wrote to the tensor


@dataclass(slots=True, eq=False)
class Number:
    """A SymInt, SymFloat or SymBool of the decomposed program."""

    expression: Any  # a sympy expression
    kind: type  # int, float or bool
    node: int | None  # the number of the node that computes it; None: no node reads this size yet


_known: dict[tuple[Any, ...], Facts] = {}


def shared(facts: Facts) -> Facts:
    """Return `facts`, or the equal Facts that this function returned before."""
    return _known.setdefault(tuple(facts), facts)


def size_of(number: Any, shape_env: Any) -> Size:
    """Return a size, a stride or an offset as an int, or as the expression of a SymInt."""
    known = compat.as_int(number)
    if known is not None:
        return known
    expression = compat.expression_of(number, shape_env)
    if expression is None:
        raise UnsafeError("a size has no expression in the ShapeEnv of the program")
    return expression


def facts_of(
    tensor: torch.Tensor, shape_env: Any, wrapper_requires_grad: bool | None = None
) -> Facts:
    """Return the Facts of a tensor; raise UnsafeError if templates do not support it."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise UnsafeError("a tensor is not strided, or is a conjugate or a negative view")
    if tensor.is_quantized or tensor.is_inference():
        raise UnsafeError("a tensor is quantized, or was created in inference mode")
    shape = tuple([size_of(n, shape_env) for n in tensor.shape])
    strides = tuple([size_of(n, shape_env) for n in tensor.stride()])
    offset = size_of(tensor.storage_offset(), shape_env)
    needs_grad = tensor.requires_grad
    outer = needs_grad if wrapper_requires_grad is None else wrapper_requires_grad
    is_symbolic = not {*map(type, shape), *map(type, strides), type(offset)} <= _INT
    others = (tensor.dtype, tensor.device, offset, outer, needs_grad, is_symbolic)
    return shared(Facts(shape, strides, *others))


_INT = {int}


def bytes_of(facts: Facts) -> Size:
    """Return the size in bytes of the storage that `torch.empty_strided` creates for `facts`."""
    last = sum((n - 1) * stride for n, stride in zip(facts.shape, facts.strides, strict=True))
    return 0 if 0 in facts.shape else (last + 1) * facts.dtype.itemsize
