"""What is known of the tensors of the new program while it is planned."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class UnsafeError(Exception):
    """The program, or a part of it, is not known to be safe to stamp. Says why."""


class Facts(NamedTuple):
    """The metadata of a tensor that a trace can see."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    offset: int
    wrapper_requires_grad: bool  # what autograd sees
    requires_grad: bool  # what kernels below autograd see


class Storage:
    """The storage of tensors of the new program.

    Attributes:
        nbytes: its size.
        made: torch's storage, once a tensor in it was made.
        state: a real tensor in it, if there is one.
    """

    __slots__ = ("made", "nbytes", "state")

    def __init__(self, nbytes: int, made: Any = None, state: Any = None) -> None:
        self.nbytes = nbytes
        self.made = made
        self.state = state


class Value:
    """A tensor of the new program.

    Attributes:
        node: the number of its node in the trace before dead code elimination.
        facts: its metadata.
        storage: where it lies.
    """

    __slots__ = ("facts", "node", "storage")

    def __init__(self, node: int, facts: Facts, storage: Storage) -> None:
        self.node = node
        self.facts = facts
        self.storage = storage


_known: dict[Facts, Facts] = {}


def shared(facts: Facts) -> Facts:
    """Return the one object that stands for equal facts, so that they compare by identity."""
    return _known.setdefault(facts, facts)


def facts_of(tensor: torch.Tensor, wrapper_requires_grad: bool | None = None) -> Facts:
    """Return the metadata of a tensor.

    Args:
        tensor: a plain or a fake tensor.
        wrapper_requires_grad: what autograd sees; None: what the tensor itself says.

    Raises:
        UnsafeError: the tensor has sizes that are symbols, or is not simply strided.
    """
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        raise UnsafeError("a tensor that is not simply strided")
    if tensor.is_quantized or tensor.is_inference():
        raise UnsafeError("a quantized tensor, or one of inference mode")
    shape, strides, offset = tuple(tensor.shape), tensor.stride(), tensor.storage_offset()
    if any(type(number) is not int for number in (*shape, *strides, offset)):
        raise UnsafeError("symbolic sizes")
    needs_grad = tensor.requires_grad
    outer = needs_grad if wrapper_requires_grad is None else wrapper_requires_grad
    return shared(Facts(shape, strides, tensor.dtype, tensor.device, offset, outer, needs_grad))
