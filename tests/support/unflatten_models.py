"""Small modules with nested, repeated, shared and preserved calls."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Leaf(nn.Module):
    """A parameter and a buffer; positional argument, keyword with default, dict out."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, size))
        self.register_buffer("shift", torch.arange(float(size)))

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> dict[str, Tensor]:
        y = x * self.weight + self.shift
        return {"y": y if scale is None else y * scale, "x": x.neg()}


class Middle(nn.Module):
    """Calls a leaf once, and passes it keyword arguments."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.leaf = Leaf(size)
        self.linear = nn.Linear(size, size)

    def forward(self, pair: tuple[Tensor, Tensor], scale: Tensor) -> tuple[Tensor, Tensor]:
        a, b = pair
        out = self.leaf(self.linear(a), scale=scale)
        return out["y"] + b, out["x"]


class Nest(nn.Module):
    """Two levels, three modules in a row, some of them called with nested inputs."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.first = Middle(size)
        self.second = Middle(size)
        self.norm = nn.LayerNorm(size)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = self.first((x, y), y.sigmoid())
        c, d = self.second((a, b), x.tanh())
        return self.norm(c + d)


class Counter(nn.Module):
    """A buffer that every call reads and writes."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.count.add_(1)
        return x + self.count


class Repeated(nn.Module):
    """One submodule that is called three times, with equal or different graphs."""

    def __init__(self, inner: nn.Module, *, between: bool = True) -> None:
        super().__init__()
        self.inner = inner
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = self.inner(x)
            if self.between:
                x = x.sin()
        return x


class Specialised(nn.Module):
    """The result depends on a constant argument: each call has a separate graph."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor, flag: bool = True, *, power: int = 2) -> Tensor:
        return x * self.weight + 1 if flag else (x - self.weight) ** power


class Special(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Specialised()

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x + 3, True, power=2)
        x = self.inner(x + 4, False, power=2)
        return self.inner(x, False, power=3)


class Shared(nn.Module):
    """One module with two names, and a parameter of two modules."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = self.a
        self.c = nn.Linear(4, 4)
        self.c.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.b(self.a(x).relu()).cos())


class Deep(nn.Module):
    """A repeated module inside a repeated module."""

    def __init__(self) -> None:
        super().__init__()
        self.block = Repeated(nn.Sequential(nn.Linear(4, 4), nn.ReLU()))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.block(x) + 1))


class Outputs(nn.Module):
    """Returns one of each: tensors, None, a number, a nested container."""

    def forward(self, x: Tensor, y: Tensor | None = None) -> dict[str, Any]:
        return {"sum": x + 1, "none": y, "number": 3, "nested": [x * 2, (x - 1, 0.5)]}


class WithOutputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Outputs()

    def forward(self, x: Tensor) -> tuple[Tensor, int, float, None]:
        out = self.inner(x.cos())
        return (
            out["sum"] * out["nested"][0] + out["nested"][1][0],
            out["number"],
            out["nested"][1][1],
            out["none"],
        )


class Unused(nn.Module):
    """A submodule that nobody calls, a parameter nobody reads, an output nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(4, 4)
        self.idle = nn.Linear(4, 4)
        self.spare = nn.Parameter(torch.ones(3))
        self.register_buffer("idle_buffer", torch.ones(2))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        values, _ = torch.topk(self.used(x), 2)
        return values, y


class RootState(nn.Module):
    """State of the root that submodules take as arguments (pytorch#127643)."""

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, table: Tensor, bias: Tensor) -> Tensor:
            return self.linear(x) * table + bias

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.full((4,), 2.0))
        self.bias = nn.Parameter(torch.ones(4))
        self.layers = nn.ModuleList(self.Layer() for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, self.table, self.bias)
        return x


class ReachesDown(nn.Module):
    """The root reads a child's buffer before the child is called."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Leaf()

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.child.shift * self.child.weight
        return self.child(x)["y"]


class Sized(nn.Module):
    """Sizes computed in the root are used in two children (pytorch#132930)."""

    class Child(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x / x.size(0)

    def __init__(self) -> None:
        super().__init__()
        self.foo = self.Child()
        self.bar = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.bar(self.foo(x)).reshape(x.size(0) * x.size(1))
