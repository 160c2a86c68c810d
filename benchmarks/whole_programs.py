"""Programs that are decomposed by a full trace, because they write, branch, or depend on data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

import graphs

LAYERS = 8
_SHAPE = (2, 8, graphs.WIDTH)


def all_of_them() -> Iterator[tuple[str, ExportedProgram]]:
    """Yield each program with its name."""
    layers = f"{LAYERS} layers of a transformer"
    for what, last in _LASTS.items():
        yield f"{layers}, then {what}", _exported(_Layers(last))
    for what in ("a write to the result", "`torch.cond`"):
        yield (
            f"{layers} with dynamic sizes, then {what}",
            _exported(_Layers(_LASTS[what]), dynamic=True),
        )
    yield f"{layers}, each of which writes to a cache", _exported(_Caches())
    yield f"{layers} within `torch.no_grad()`", _exported(_WithoutGradients())
    yield "30 layers of distinct sizes, then a write", _exported(_Unlike(), torch.randn(2, 8))
    for is_training in (True, False):
        mode = "training" if is_training else "evaluation"
        model = _convolutions().train(is_training)
        name = f"batch norms in {mode}, with in-place ReLUs"
        yield name, _exported(model, torch.randn(2, 8, 8, 8))
    yield "GRU", _exported(nn.GRU(8, 8, 2, batch_first=True), torch.randn(2, 16, 8))


def _exported(
    model: nn.Module, given: Tensor | None = None, *, dynamic: bool = False
) -> ExportedProgram:
    given = torch.randn(_SHAPE) if given is None else given
    shapes = [{0: Dim("batch"), 1: Dim("sequence")}] if dynamic else None
    return export(model, (given,), dynamic_shapes=shapes, strict=False)


def _layers() -> nn.ModuleList:
    return nn.ModuleList(graphs.Layer(graphs.WIDTH, graphs.HEADS) for _ in range(LAYERS)).eval()


class _Layers(nn.Module):  # type: ignore[misc]
    """Layers without effects, followed by an operation that requires a full trace."""

    def __init__(self, last: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layers = _layers()
        self.last = last

    def forward(self, given: Tensor) -> Any:
        x = given
        for layer in self.layers:
            x = layer(x)
        return self.last(given, x)


def _write(_given: Tensor, x: Tensor) -> Tensor:
    return x.relu_()


def _write_to_input(given: Tensor, x: Tensor) -> Tensor:
    given.add_(1)
    return x


def _branch(given: Tensor, x: Tensor) -> Tensor:
    result: Tensor = torch.cond(given.sum() > 0, torch.sin, torch.cos, (x,))
    return result


def _rows_that_are_not_zero(_given: Tensor, x: Tensor) -> Tensor:
    return x.nonzero()


def _number_of_data(_given: Tensor, x: Tensor) -> Tensor:
    size = x.sum().int().item()
    torch._check(size >= 0)
    torch._check(size < 100)
    return torch.zeros(size + 1)


_LASTS: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a write to the result": _write,
    "a write to the input": _write_to_input,
    "`torch.cond`": _branch,
    "`nonzero()`": _rows_that_are_not_zero,
    "a size from `item()`": _number_of_data,
}


class _Caches(nn.Module):  # type: ignore[misc]
    """Layers that each write and read a separate buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _layers()
        for i in range(LAYERS):
            self.register_buffer(f"cache{i}", torch.zeros(2, 16, graphs.WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(8)
        for i, layer in enumerate(self.layers):
            cache = self.get_buffer(f"cache{i}")
            cache.index_copy_(1, places, x)
            x = layer(x + cache[:, :8])
        return x


class _WithoutGradients(nn.Module):  # type: ignore[misc]
    """Layers in a block without gradients, which becomes a higher-order operator."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = _layers()

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for layer in self.layers:
                x = layer(x)
        return x * 2


class _Unlike(nn.Module):  # type: ignore[misc]
    """Layers with distinct sizes: each template is used once."""

    def __init__(self) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(8 + i, 9 + i) for i in range(30))
        self.norms = nn.ModuleList(nn.LayerNorm(9 + i) for i in range(30))

    def forward(self, x: Tensor) -> Tensor:
        for linear, norm in zip(self.linears, self.norms, strict=True):
            x = norm(linear(x)).softmax(-1)
        return x.relu_()


def _convolutions() -> nn.Sequential:
    blocks = (
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        for _ in range(12)
    )
    return nn.Sequential(*blocks)
