"""Full traces of programs with symbolic sizes, in which equal calls are repeated."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental import proxy_tensor
from torch.nn import functional as F
from torch.utils._thunk import Thunk

import fxpress
from fxpress import decompose
from fxpress._graphs.decompose.traced_calls import Recording
from fxpress._torch import aten, symbols
from tests.support.decompose_cases import TABLES
from tests.support.decomposed import assert_same_program

LAYERS = 6  # the first three or four calls with equal arguments miss torch's caches


class Layers(nn.Module):
    def __init__(self, layer: Callable[[Layers, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = layer
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.conv, self.batch_norm = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8)
        self.register_buffer("total", torch.zeros(8))

    def forward(self, x: Tensor) -> Any:
        made = [x]
        for _ in range(LAYERS):
            made.append(self.layer(self, made[-1]))
        return made[1:]


def attention(m: Layers, x: Tensor) -> Tensor:
    query = m.linear(m.norm(x)).view(x.shape[0], -1, 2, 4).transpose(1, 2)
    found = F.scaled_dot_product_attention(query, query, query, is_causal=True)
    return x + found.transpose(1, 2).reshape(x.shape)


def write_to_a_view(m: Layers, x: Tensor) -> Tensor:
    other, made = F.gelu(m.linear(m.norm(x))), m.linear(x)
    made[:, 0].mul_(2)
    return other + made.relu_()


def write_to_state(m: Layers, x: Tensor) -> Tensor:
    m.total.add_(x.sum((0, 1)))
    return m.linear(x) + m.total


CASES: dict[str, Callable[[Layers, Tensor], Tensor]] = {
    "attention": attention,
    "write_to_a_view": write_to_a_view,
    "write_to_state": write_to_state,
    "gelu": lambda m, x: x + F.gelu(m.linear(m.norm(x))),
    "tokens": lambda m, x: m.linear(x.reshape(-1, 8)).reshape(x.shape),
    "halves": lambda m, x: torch.cat([*x.chunk(2, 2)][::-1], 2) * 2,
    "conv": lambda m, x: F.relu(m.batch_norm(m.conv(x.transpose(1, 2)))).transpose(1, 2),
    "sizes": lambda m, x: x * x.shape[1] + torch.arange(x.shape[1])[:, None],
    "expand": lambda m, x: x + x.mean(1, keepdim=True).expand(-1, x.shape[1], -1),
    "views": lambda m, x: x.transpose(0, 1).transpose(0, 1)[:, :, :8].unsqueeze(0).squeeze(0),
    "strides": lambda m, x: m.linear(x.transpose(0, 1).contiguous()).transpose(0, 1).clone(),
    "pad": lambda m, x: F.pad(x, (1, 1))[:, :, 1:-1] + F.avg_pool1d(x, 3, 1, 1),
    "dropout": lambda m, x: F.dropout(m.linear(x), 0.5, True),
    "numbers": lambda m, x: (x / x.shape[1] ** 0.5).softmax(-1).masked_fill(x > x.numel(), 0),
    "double": lambda m, x: m.linear(x.to(torch.float64).float()).where(x > 0, x),
}


def exported(model: nn.Module, shapes: Any, *inputs: Tensor) -> ExportedProgram:
    return export(model, inputs or (torch.randn(3, 6, 8),), dynamic_shapes=shapes, strict=False)


def decomposed(
    model: nn.Module, table: str, shapes: Any, *inputs: Tensor
) -> tuple[ExportedProgram, ExportedProgram]:
    """The program as decomposed by fxpress and by torch; nothing has decomposed it before."""
    programs = [exported(model, shapes, *inputs) for _ in range(2)]
    programs[0]._example_inputs = programs[1]._example_inputs
    decompose.forget_templates()
    FakeTensorMode.cache_clear()
    theirs = programs[1].run_decompositions(TABLES[table]())
    FakeTensorMode.cache_clear()
    return decompose.run_decompositions(programs[0], TABLES[table]()), theirs


def assert_repeated(case: str, table: str, shapes: Any) -> None:
    torch.manual_seed(0)
    ours, theirs = decomposed(Layers(CASES[case]), table, (shapes,))
    report = decompose.report()
    assert report.reason
    assert report.instantiated >= LAYERS // 2, report
    assert_same_program(ours, theirs)


DYNAMIC = {0: Dim.DYNAMIC, 1: Dim.DYNAMIC}


@pytest.mark.parametrize("case", ["attention", "write_to_a_view"])
def test_repeated_calls(case: str) -> None:
    assert_repeated(case, "default", DYNAMIC)


@pytest.mark.slow("torch exports and decomposes the programs")
@pytest.mark.parametrize("table", ["default", "empty"])
@pytest.mark.parametrize("case", CASES)
def test_all_cases(case: str, table: str) -> None:
    assert_repeated(case, table, DYNAMIC)


@pytest.mark.slow("torch exports and decomposes the programs")
@pytest.mark.parametrize("sizes", [{0: Dim("b", min=0, max=9)}, {1: Dim.AUTO}, {1: 2 * Dim("h")}])
def test_other_sizes(sizes: Any) -> None:
    assert_repeated("gelu", "default", sizes)


class Derived(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> list[Tensor]:
        return [(x + i).view(-1, 2, 8).sum(1) + y for i in range(LAYERS)]


@pytest.mark.slow("torch exports and decomposes the program")
def test_sizes_with_a_constant_expression_are_ints() -> None:
    half = Dim("half")
    shapes = ({0: 2 * half}, {0: half})
    programs = decomposed(Derived(), "default", shapes, torch.randn(10, 8), torch.randn(5, 8))
    types = [
        [[*map(type, node.meta["tensor_meta"].shape)] for node in made.graph.nodes if node.users]
        for made in programs
    ]
    assert types[0] == types[1]


class Nonzero(nn.Module):
    """torch remembers the symbol of a tensor's nonzero elements with the tensor."""

    def forward(self, x: Tensor) -> list[Tensor]:
        found = [(x + 1).relu() for _ in range(LAYERS)]
        return [each.nonzero() + 1 for each in found for _ in range(2)]


@pytest.mark.slow("torch exports and decomposes the program")
def test_calls_whose_result_has_a_size_that_depends_on_data() -> None:
    ours, theirs = decomposed(Nonzero(), "default", ({0: Dim.DYNAMIC},), torch.randn(4, 3))
    assert_same_program(ours, theirs)


@pytest.mark.slow("torch exports and decomposes the program")
def test_checks_compare_repeated_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> ExportedProgram:
        decompose.forget_templates()
        return exported(Layers(attention), (DYNAMIC,))

    with decompose.check_templates():
        decompose.run_decompositions(program())
    assert decompose.report().instantiated
    monkeypatch.setattr(Recording, "is_repeatable", lambda self: True)
    with decompose.check_templates(), pytest.raises(fxpress.InternalError, match="differs"):
        decompose.run_decompositions(program())


def test_a_layout_needs_symbolic_sizes() -> None:
    with pytest.raises(ValueError, match="has no symbolic sizes"):
        aten.layout_of(torch.ones(2))
    nodes = exported(Layers(CASES["gelu"]), (DYNAMIC,)).graph.nodes
    (fake,) = [node.meta["val"] for node in nodes if node.name == "x"]
    layout = aten.layout_of(fake)
    with pytest.raises(ValueError, match="expected as many strides as sizes"):
        aten.make_meta((0, [2, 2], [1], 0), torch.float32, None)
    with pytest.raises(ValueError, match="expected as many sizes"):
        aten.give_layout(layout, fake, (0, [2], [1], 0), 1)
    with pytest.raises(ValueError, match="has no symbolic sizes"):
        aten.give_layout(layout, torch.ones(2), (0, [2, 2, 2], [4, 2, 1], 0), 1)
    with pytest.raises(ValueError, match="incorrect name"):
        aten.give_layout(aten.fake_like, fake, (0, [2, 2, 2], [4, 2, 1], 0), 1)


def test_nodes_that_would_be_computed_later() -> None:
    """torch delays some computations of symbolic ints until a node needs them."""
    nodes = exported(Layers(CASES["gelu"]), (DYNAMIC,)).graph.nodes
    (size,) = [node.meta["val"].shape[0] for node in nodes if node.name == "x"]
    tracer = types.SimpleNamespace(symnode_tracker=proxy_tensor._SymNodeDict())
    assert symbols.slot_of(size, tracer) is None
    tracer.symnode_tracker[size] = Thunk(functools.partial(lambda number: number, size))
    assert symbols.slot_of(size, tracer) == symbols.Slot(None)
