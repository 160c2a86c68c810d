"""Models whose weights are subclasses of tensors with tensors inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Scaled(torch.Tensor):
    """A quantized tensor: values and a scale; the values may be a `Scaled` again.

    A linear layer converts it to a plain tensor, so exported graphs have nodes before all modules.
    """

    codes: Tensor
    factor: Tensor

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, values.shape, dtype=scale.dtype, device=values.device
        )

    def __init__(self, values: Tensor, scale: Tensor) -> None:
        self.codes, self.factor = values, scale

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Scaled({self.codes!r}, {self.factor!r})"

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["codes", "factor"], None

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Any:
        return Scaled(inner["codes"], inner["factor"])

    def plain(self) -> Tensor:
        codes, factor = self.codes, self.factor
        plain = codes.plain() if isinstance(codes, Scaled) else codes
        return plain.to(factor.dtype) * factor

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear and isinstance(args[1], Scaled):
            x, weight, bias = (*args, None)[:3]
            return functional.linear(x, weight.plain(), bias)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        aten = torch.ops.aten
        if func in (aten.detach.default, aten.clone.default, aten.alias.default):
            return Scaled(*(func(part, *args[1:], **kwargs) for part in inner(args[0])))
        if func is aten.copy_.default:
            for part, other in zip(inner(args[0]), inner(args[1]), strict=True):
                part.copy_(other)
            return args[0]
        plain = [arg.plain() if isinstance(arg, Scaled) else arg for arg in args]
        return func(*plain, **kwargs)


def inner(tensor: Any) -> tuple[Tensor, Tensor]:
    return tensor.codes, tensor.factor


def scaled(depth: int = 1) -> Tensor:
    values = torch.randint(-8, 8, (4, 4)).to(torch.int8)
    made = Scaled(values, torch.rand(4, 1))
    for _ in range(depth - 1):
        made = Scaled(made, torch.rand(4, 1))
    return made


def layer(weight: Tensor | None = None) -> nn.Linear:
    made = nn.Linear(4, 4)
    weight = scaled() if weight is None else weight
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


class Block(nn.Module):
    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).relu())  # type: ignore[no-any-return]


class Buffered(nn.Module):
    """The subclass is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", scaled())

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.table)


class AroundAndInside(nn.Module):
    """The root uses the weight of its child, which its child uses too."""

    def __init__(self) -> None:
        super().__init__()
        self.child = layer()

    def forward(self, x: Tensor) -> Tensor:
        x = functional.linear(x, self.child.weight).sin()
        x = self.child(x).cos()
        return functional.linear(x, self.child.weight)


def repeated() -> nn.Module:
    shared = layer()
    return nn.Sequential(shared, nn.ReLU(), shared)


def tied() -> nn.Module:
    """Two modules with one weight."""
    made = Block(layer(), layer())
    made.second.weight = made.first.weight
    return made


MODELS = {
    "two": lambda: nn.Sequential(layer(), nn.ReLU(), Block(layer(), layer())),
    "nested": lambda: Block(layer(scaled(2)), layer(scaled(3))),
    "buffer": lambda: Block(Buffered(), layer()),
    "repeated": repeated,
    "tied": tied,
    "around": AroundAndInside,
    "alone": layer,
}
