"""module() of many programs, compared with torch's."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from tests.support import seed_programs
from tests.support.exported import exported_or_skipped
from tests.support.sampled import turns
from tests.support.unflatten_models import (
    Counter,
    Deep,
    Nest,
    Repeated,
    RootState,
    Shared,
    Special,
    Unused,
    WithOutputs,
)
from tests.support.unlifted import assert_module_as_torch, assert_same_module, ours_of, torchs

pytestmark = pytest.mark.deep("a hundred programs, exported and decomposed")

STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])
WAYS = ["exported", "decomposed", "strict and decomposed"]

X = torch.linspace(-1.0, 1.0, 12).view(3, 4)


class Odd(nn.Module):
    """State of each type: tied, aliased, not persistent, constants of two modules, some unused."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)
        self.b.weight = self.a.weight
        self.register_buffer("kept", torch.ones(4))
        self.register_buffer("transient", torch.full((4,), 2.0), persistent=False)
        self.a.register_buffer("transient", torch.full((4,), 3.0), persistent=False)
        self.a.constant = torch.arange(4.0)
        self.constant = torch.arange(4.0) + 1
        self.same = self.constant
        self.unread = torch.zeros(2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.b(self.a(x)) + self.kept + self.transient * self.a.transient
        return x * self.constant + self.same * self.a.constant + torch.tensor([1.0, 2.0, 3.0, 4.0])


class Writes(nn.Module):
    """Writes persistent and other buffers and an input, and returns the written values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("last", torch.zeros(3, 4), persistent=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        self.count.add_(1)
        self.last.copy_(x)
        y.mul_(2)
        return self.count, x + self.last, y, y + 1


class TakesContainers(nn.Module):
    def forward(self, x: Any, *more: Tensor, scale: Tensor, **named: Any) -> Any:
        total = x["a"][0] + x["a"][1] * scale
        for each in more:
            total = total + each
        return {"total": total + named["extra"], "parts": [x["b"], (total, None, 3)]}


class Constants(nn.Module):
    def forward(self, x: Tensor, number: int, rate: float, word: str, none: None = None) -> Tensor:
        return x * number + rate if word == "add" else x - number


class NamedAsBuiltins(nn.Module):
    """Copying the graph renames inputs with such names."""

    def forward(self, input: Tensor, max: Tensor) -> tuple[Tensor, Tensor]:
        sum = input + max
        return sum.abs(), input.max(dim=0).values


class Parts(nn.Module):
    """A branch whose bodies have state."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cond(
            x.sum() > 0, lambda x: self.linear(x) + self.shift, lambda x: self.linear(x).sin(), (x,)
        )
        with torch.no_grad():
            return self.linear(x) + x


class Empty(nn.Module):
    def forward(self) -> Tensor:
        return torch.ones(2)


class ReturnsState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.weight, x, x + self.weight


MODELS: dict[str, tuple[type[nn.Module] | Any, tuple[Any, ...], dict[str, Any]]] = {
    "nest": (Nest, (X, X), {}),
    "shared": (Shared, (X,), {}),
    "special": (Special, (X,), {}),
    "unused": (Unused, (X, X), {}),
    "deep": (Deep, (X,), {}),
    "root state": (RootState, (X,), {}),
    "outputs": (WithOutputs, (X,), {}),
    "repeated writes": (lambda: Repeated(Counter()), (X,), {}),
    "odd state": (Odd, (X,), {}),
    "writes": (Writes, (X, X + 1), {}),
    "containers": (
        TakesContainers,
        ({"a": [X, X], "b": X}, X, X),
        {"scale": X, "extra": X},
    ),
    "constants": (Constants, (X, 3, 2.5, "add"), {}),
    "builtin names": (NamedAsBuiltins, (X, X), {}),
    "branches": (Parts, (X,), {}),
    "empty": (Empty, (), {}),
    "returns state": (ReturnsState, (X,), {}),
}


def made(name: str) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    torch.manual_seed(0)
    build, args, kwargs = MODELS[name]
    return build(), args, kwargs


@pytest.mark.parametrize(("name", "way"), turns(sorted(MODELS), WAYS))
def test_models(name: str, way: str) -> None:
    model, args, kwargs = made(name)
    program = exported_or_skipped(model, args, kwargs, strict="strict" in way)
    if "decomposed" in way:
        program = program.run_decompositions()
    assert_module_as_torch(program, args, kwargs)


@pytest.mark.parametrize("name", sorted(MODELS))
def test_programs_from_files(name: str) -> None:
    model, args, kwargs = made(name)
    file = io.BytesIO()
    torch.export.save(exported_or_skipped(model, args, kwargs, strict=False), file)
    file.seek(0)
    assert_module_as_torch(torch.export.load(file), args, kwargs)


@pytest.mark.parametrize("make", seed_programs.PROGRAMS, ids=lambda make: make.__name__)
def test_seed_programs(make: Any) -> None:
    seed_programs.register()
    program = make()
    args, kwargs = program.example_inputs
    assert_module_as_torch(program, args, kwargs)


def test_preserved_signatures() -> None:
    torch.manual_seed(0)
    program = export(
        Nest(), (X, X), strict=False, preserve_module_call_signature=("first", "second.leaf")
    )
    assert_module_as_torch(program, (X, X))


def test_fake_example_inputs() -> None:
    with torch._subclasses.FakeTensorMode():
        model, x = nn.Linear(4, 4), torch.empty(3, 4)
    program = export(model, (x,), strict=False)
    assert_same_module(ours_of(program), torchs(program))


def test_without_example_inputs() -> None:
    program = export(nn.Linear(4, 4), (X,), strict=False)
    program.example_inputs = None
    made = assert_module_as_torch(program, (X,))
    assert not hasattr(made, "_guards_fn")


def test_edited_programs() -> None:
    """A pass may rename nodes, add some, and leave dead ones."""
    program = export(nn.Sequential(nn.Linear(4, 4), nn.ReLU()), (X,), strict=False)
    graph = program.graph
    relu = graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)[0]
    with graph.inserting_after(relu):
        dead = graph.call_function(torch.ops.aten.sin.default, (relu,))
    relu.name = "sum"  # a builtin: the copy gets another name, and no note of this node
    dead.meta["val"] = relu.meta["val"]
    assert_module_as_torch(program, (X,))


def test_dead_code_of_decomposed_programs() -> None:
    torch.manual_seed(0)
    program = export(Parts(), (X,), strict=False).run_decompositions({})
    add_dead_code(program.graph)
    assert_module_as_torch(program, (X,))


def add_dead_code(graph: torch.fx.Graph) -> None:
    node = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(node):
        dead = graph.call_function(torch.ops.aten.sin.default, (node,))
    dead.meta.update(node.meta)


def test_custom_metadata_of_the_module() -> None:
    program = export(nn.Linear(4, 4), (X,), strict=False)
    program.graph_module.meta["mine"] = object()
    assert_module_as_torch(program, (X,))


@STRICT
def test_modules_with_hooks_in_training(strict: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5)).train()
    x = torch.randn(2, 3, 8, 8)
    assert_module_as_torch(export(model, (x,), strict=strict), (x,))


def dynamic(model: nn.Module, args: Any, shapes: Any, *, strict: bool) -> ExportedProgram:
    return exported_or_skipped(model, args, dynamic_shapes=shapes, strict=strict)


class Sum(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return x.sum(0) + y.sum(0)


class Guarded(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if x.shape[0] % 3 == 0 or x.shape[0] * y.shape[0] < 50:
            return x.sum() * 2 + y.shape[0]
        return x.sum() + y.sum()


ROWS = Dim("rows", min=3, max=64)
SHAPES: dict[str, tuple[type[nn.Module], Any]] = {
    "one symbol": (Sum, ({0: ROWS}, {0: ROWS})),
    "two symbols": (Sum, ({0: ROWS}, {0: Dim("more", max=9)})),
    "derived": (Sum, ({0: ROWS}, {0: 2 * ROWS + 1})),
    "derived only": (Sum, ({0: 2 * ROWS}, {0: 3 * ROWS + 1})),
    "automatic": (Guarded, ({0: Dim.AUTO}, {0: Dim.AUTO})),
}


@STRICT
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_dynamic_shapes(name: str, strict: bool) -> None:
    build, shapes = SHAPES[name]
    sizes = {"derived": (6, 13), "derived only": (6, 10)}.get(name, (6, 6))
    args = (torch.randn(sizes[0], 4), torch.randn(sizes[1], 4))
    program = dynamic(build(), args, shapes, strict=strict)
    assert_module_as_torch(program, args)
    for wrong in ((5, 5), (2, 2), (100, 100), (6, 9)):
        assert_module_as_torch(program, tuple(torch.randn(rows, 4) for rows in wrong))
