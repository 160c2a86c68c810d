"""Make values such that they can be sent, and what they were again."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._pipeline.manifest import Value

_DTYPES = {"int": torch.int64, "float": torch.float64, "bool": torch.bool}


class _Received(torch.autograd.Function):  # type: ignore[misc]
    """Passes a tensor on; its gradient is sent back, and so has to be contiguous."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient.contiguous()


def packed(value: Any, facts: Value) -> torch.Tensor:
    """Return a contiguous tensor for a tensor or a number.

    A tensor whose dimensions are in another order in memory is sent in that order, so that it
    arrives with its strides.
    """
    if not isinstance(value, torch.Tensor):
        return torch.tensor(value, dtype=_DTYPES[facts.type])
    if facts.order is not None:
        value = value.permute(facts.order)
    return value.contiguous()


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
