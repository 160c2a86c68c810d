"""Descriptions of the new program's values while it is planned."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from fxpress._torch import symbols as compat


class UnsafeError(Exception):
    """The program cannot be decomposed by templates; the message is the reason."""


# A size, a stride or an offset: an int, or the sympy expression of a SymInt.
Size = Any


class ByIdentity:
    """Base of tuples that compare and hash by identity.

    Keys of `id(value)` would cost more: in a process with an audit hook, each `id` calls the hook.
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
    wrapper_requires_grad: bool  # of the functional tensor, which autograd sees
    requires_grad: bool  # of the fake tensor, which kernels below autograd see
    is_symbolic: bool  # whether a size, a stride or the offset is not an int


class Facts(ByIdentity, _Facts):
    """The metadata of a tensor that a trace can read. Equal facts are one object: see `shared`."""

    __slots__ = ()


class Storage:
    """The storage of tensors of the new program.

    Attributes:
        nbytes: its size.
        made: torch's storage, once it was created.
        state: a real tensor on it, if there is one.
        has_moved: whether its tensors have other metadata in torch's first run of the program.
    """

    __slots__ = ("has_moved", "made", "nbytes", "state")

    def __init__(
        self, nbytes: Size, made: Any = None, state: Any = None, *, has_moved: bool = False
    ) -> None:
        self.nbytes = nbytes
        self.made = made
        self.state = state
        self.has_moved = has_moved


class Value:
    """A tensor of the new program.

    Attributes:
        node: the number of its node in the trace before dead code elimination.
        facts: its metadata.
        storage: its storage.
    """

    __slots__ = ("facts", "node", "storage")

    def __init__(self, node: int, facts: Facts, storage: Storage) -> None:
        self.node = node
        self.facts = facts
        self.storage = storage


class Number:
    """A SymInt, SymFloat or SymBool of the new program.

    Attributes:
        expression: its sympy expression.
        kind: int, float or bool.
        node: the number of the node that computes it; None for the size of a tensor, for which
            torch creates a node when one is needed.
    """

    __slots__ = ("expression", "kind", "node")

    def __init__(self, expression: Any, kind: type, node: int | None) -> None:
        self.expression = expression
        self.kind = kind
        self.node = node


_known: dict[tuple[Any, ...], Facts] = {}


def shared(facts: Facts) -> Facts:
    """Return the canonical object of equal facts."""
    return _known.setdefault(tuple(facts), facts)


def size_of(number: Any, shape_env: Any) -> Size:
    """Return a size as an int or an expression."""
    known = compat.as_int(number)
    if known is not None:
        return known
    expression = compat.expression_of(number, shape_env)
    if expression is None:
        raise UnsafeError("a size without an expression, or of another environment")
    return expression


def facts_of(
    tensor: torch.Tensor, shape_env: Any, wrapper_requires_grad: bool | None = None
) -> Facts:
    """Return the metadata of a tensor."""
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise UnsafeError("a tensor that is not simply strided")
    if tensor.is_quantized or tensor.is_inference():
        raise UnsafeError("a quantized tensor, or one of inference mode")
    shape = tuple([size_of(n, shape_env) for n in tensor.shape])
    strides = tuple([size_of(n, shape_env) for n in tensor.stride()])
    offset = size_of(tensor.storage_offset(), shape_env)
    needs_grad = tensor.requires_grad
    outer = needs_grad if wrapper_requires_grad is None else wrapper_requires_grad
    is_symbolic = not {*map(type, shape), *map(type, strides), type(offset)} <= _INT
    place = (tensor.dtype, tensor.device, offset)
    return shared(Facts(shape, strides, *place, outer, needs_grad, is_symbolic))


_INT = {int}
