"""Make values such that they can be sent, and what they were again."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._distributed.stages.manifest import Value

_DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}


class _Received(torch.autograd.Function):  # type: ignore[misc]
    """Passes a tensor on; its gradient is sent back, and so has to be contiguous."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


class _Given(torch.autograd.Function):  # type: ignore[misc]
    """Gives a tensor as another object, which is no view and which no operator has saved.

    torch detaches what a stage gives in place, while the rest of its backward is still to come.
    """

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.detach()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


def packed(value: Any, facts: Value) -> torch.Tensor:
    """Return a contiguous tensor for a tensor or a number.

    A tensor whose dimensions are in another order in memory is sent in that order, so that it
    arrives with its strides.
    """
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=_DTYPES[facts.type])
    if facts.order is not None:
        value = value.permute(facts.order)
    return _given(value.contiguous())


def as_result(value: Any, facts: Value) -> torch.Tensor:
    """Return a tensor for a result of the whole, with the strides that it has."""
    return _given(value) if isinstance(value, torch.Tensor) else packed(value, facts)


def _given(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that torch may detach in place."""
    return _Given.apply(tensor) if tensor.requires_grad else tensor.detach()


def unpacked(tensor: torch.Tensor, facts: Value) -> Any:
    """Return what `packed` was given."""
    if facts.type != "tensor":
        return tensor.item()
    if tensor.requires_grad:
        tensor = _Received.apply(tensor)
    if facts.order is None:
        return tensor
    back = sorted(range(len(facts.order)), key=facts.order.__getitem__)
    return tensor.permute(back)
