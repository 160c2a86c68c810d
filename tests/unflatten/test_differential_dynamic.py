"""Programs with symbolic sizes: where size nodes go, and inputs of other sizes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, export

from tests.support.sampled import turns
from tests.support.unflatten_cases import assert_unflattens_as_torch, dynamic_batch
from tests.support.unflatten_compare import assert_runs_as_eager
from tests.support.unflatten_models import Deep, Nest, RootState, Shared, Sized, Special

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


class Reshapes(nn.Module):
    """Sizes that cross modules: as values, inside lists, and as arguments of a child."""

    class Child(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)

        def forward(self, x: Tensor, size: int) -> tuple[Tensor, int]:
            y = self.linear(x).view(size * 2, 2)
            return y, y.shape[0]

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()
        self.other = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        size = x.shape[0]
        y, rows = self.child(x, size)
        z, _ = self.other(x.cos(), size)
        return torch.cat([y, z.view(rows, 2)]).new_ones(rows + size) * size


class Unbacked(nn.Module):
    """A size that depends on data, used in a child."""

    class Child(nn.Module):
        def forward(self, x: Tensor, size: int) -> Tensor:
            return x.new_zeros(size) + x.sum()

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor, n: Tensor) -> Tensor:
        size = n.item()
        torch._check(size >= 1)
        torch._check(size <= 100)
        return self.child(x, size) * size


class Scaled(nn.Module):
    """Symbolic floats."""

    class Child(nn.Module):
        def forward(self, x: Tensor, factor: float) -> Tensor:
            return x * factor

    def __init__(self) -> None:
        super().__init__()
        self.child = self.Child()

    def forward(self, x: Tensor) -> Tensor:
        return self.child(x, x.shape[0] / 2) + self.child(x.cos(), x.shape[0] * 2.5)


MODELS: dict[str, tuple[type[nn.Module], int]] = {
    "nest": (Nest, 2),
    "deep": (Deep, 1),
    "root state": (RootState, 1),
    "shared": (Shared, 1),
    "sized": (Sized, 1),
    "special": (Special, 1),
    "reshapes": (Reshapes, 1),
    "scaled": (Scaled, 1),
}


def inputs(count: int, rows: int = 3) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    return tuple(torch.randn(rows, 4, generator=generator) for _ in range(count))


def check(model: nn.Module, count: int, **options: Any) -> None:
    args = inputs(count)
    program = export(
        copy.deepcopy(model),
        args,
        dynamic_shapes={"x": {0: Dim("batch", min=2)}} if count == 1 else dynamic_batch(*args),
        **options,
    )
    result = assert_unflattens_as_torch(program, model, args, gradients=True)
    assert_runs_as_eager(result.ours, model, inputs(count, rows=7), gradients=True)


@pytest.mark.parametrize(("name", "strict"), turns(sorted(MODELS), [False, True]))
def test_batch(name: str, strict: bool) -> None:
    torch.manual_seed(0)
    build, count = MODELS[name]
    check(build(), count, strict=strict)


@STRICT
@pytest.mark.parametrize(
    ("name", "preserved"),
    [
        ("nest", ("first", "second.leaf")),
        ("deep", ("block", "block.inner")),
        ("root state", ("layers.1",)),
        ("sized", ("foo",)),
        ("sized", ("foo", "bar")),
        ("special", ("inner",)),
        ("reshapes", ("child.linear", "other.linear")),
    ],
)
def test_batch_with_preserved_signatures(
    name: str, preserved: tuple[str, ...], strict: bool
) -> None:
    torch.manual_seed(0)
    build, count = MODELS[name]
    check(build(), count, strict=strict, preserve_module_call_signature=preserved)


@STRICT
def test_size_from_data(strict: bool) -> None:
    model, args = Unbacked(), (torch.randn(3), torch.tensor(5))
    program = export(copy.deepcopy(model), args, strict=strict)
    result = assert_unflattens_as_torch(program, model, args)
    assert_runs_as_eager(result.ours, model, (torch.randn(3), torch.tensor(11)))


def test_symbolic_inputs() -> None:
    """Numbers as inputs of the program."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.child = Reshapes.Child()

        def forward(self, x: Tensor, size: int) -> Tensor:
            return self.child(x, size)[0]

    model = Model()
    program = export(
        copy.deepcopy(model),
        (torch.randn(3, 4), 3),
        dynamic_shapes=({0: Dim.DYNAMIC}, Dim.DYNAMIC),
        strict=False,
    )
    result = assert_unflattens_as_torch(program, model, (torch.randn(3, 4), 3))
    assert_runs_as_eager(result.ours, model, (torch.randn(6, 4), 6))
