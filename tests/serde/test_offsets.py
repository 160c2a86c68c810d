"""Storage offsets of values, which torch does not restore: they never keep a program from being
read, whatever their symbols are."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch.export import Dim, ExportedProgram, export
from torch.export._patches import (
    register_gru_while_loop_decomposition,
    register_lstm_while_loop_decomposition,
)

from fxpress.serialize import SerializedArtifact, SerializeError, deserialize, serialize
from tests.support.deserialized import assert_reads_as_torch
from tests.support.reading_cases import edited

UNBACKED = "Symbol('u{}', integer=True)"


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.layer = kind(4, 4)

    def forward(self, x: Tensor, hidden: Any) -> Tensor:
        result: Tensor = self.layer(x, hidden)[0]
        return result


# torch's decompositions ask for sizes in an old way, and its layers assign their weights.
@pytest.mark.filterwarnings("ignore:_check_is_size", "ignore:The tensor attributes")
@pytest.mark.parametrize(
    ("kind", "registered", "states"),
    [
        (nn.LSTM, register_lstm_while_loop_decomposition, 2),
        (nn.GRU, register_gru_while_loop_decomposition, 1),
    ],
)
def test_loops_over_steps(
    kind: type[nn.Module], registered: Callable[[], Any], states: int
) -> None:
    """The offset depends on a symbol of the loop, which is not in a graph."""
    model = Recurrent(kind)
    state = [torch.randn(1, 2, 4) for _ in range(states)]
    hidden = tuple(state) if states > 1 else state[0]
    x = torch.randn(6, 2, 4)
    fixed = (None, None) if states > 1 else None
    shapes = {"x": {0: Dim.DYNAMIC}, "hidden": fixed}
    with registered():
        program = export(model, (x, hidden), dynamic_shapes=shapes, strict=False)
    offsets = [
        str(value.storage_offset())
        for node in program.graph.nodes
        if isinstance(value := node.meta.get("val"), Tensor)
    ]
    assert any("u" in offset for offset in offsets)
    written = serialize(program)
    assert assert_reads_as_torch(written) is not None
    read = deserialize(written)
    assert read.range_constraints == program.range_constraints
    assert serialize(read).exported_program == written.exported_program
    for steps in (2, 6):
        torch.testing.assert_close(read.module()(x[:steps], hidden), model(x[:steps], hidden))


class Counted(nn.Module):
    """Symbols of sizes and of offsets, before and after a nested graph."""

    def forward(self, x: Tensor, count: Tensor) -> Tensor:
        first = x.sin()
        inner = torch.cond(x.sum() > 0, lambda x: (x.cos(),), lambda x: (x.tan(),), (first,))
        n = count.item()
        torch._check(n >= 2)
        return inner[0].sum() + torch.zeros(n + 1).sum()


@functools.cache
def counted() -> SerializedArtifact:
    shapes = ({0: Dim("rows", min=2)}, None)
    args = torch.randn(6, 2), torch.tensor(4)
    return serialize(export(Counted(), args, dynamic_shapes=shapes, strict=False))


def with_offset(text: str, *values: str) -> SerializedArtifact:
    """The program with another storage offset of some values of its graphs."""
    offset = {"as_expr": {"expr_str": text, "hint": None}}
    found = set()

    def edit(stored: Any) -> None:
        open_ = [stored]
        while open_:
            part = open_.pop()
            if isinstance(part, list):
                open_.extend(part)
            elif isinstance(part, dict):
                open_.extend(part.values())
                for name in set(values) & set(part.get("tensor_values", ())):
                    part["tensor_values"][name]["storage_offset"] = offset
                    found.add(name)

    result = edited(counted(), edit)
    assert found == set(values)
    return result


def offsets(program: ExportedProgram, name: str) -> set[str]:
    return {
        str(node.meta["val"].storage_offset())
        for module in program.graph_module.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if node.name == name
    }


def bindings(program: ExportedProgram) -> dict[str, list[str]]:
    return {
        node.name: sorted(map(str, node.meta["unbacked_bindings"]))
        for node in program.graph.nodes
        if "unbacked_bindings" in node.meta
    }


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("u7", "u7"),
        ("2*u7 + 1", "2*u7 + 1"),
        ("u7 - 5", "u7 - 5"),
        ("u7*s77 - u8", "s77*u7 - u8"),
        ("s12", "s12"),
        ("s12*u7", "s12*u7"),
        ("Max(u7, s77)", "Max(s77, u7)"),
        ("zuf3", "zuf3"),
    ],
)
@pytest.mark.parametrize("value", ["sin", "cos"])
def test_symbols_that_only_offsets_have(text: str, shown: str, value: str) -> None:
    """In the program's graph, or in one within it."""
    read = assert_reads_as_torch(with_offset(text, value))
    assert read is not None
    assert offsets(read, value) == {shown}


@pytest.mark.parametrize("text", ["-s77", "s77 - 100", "-5 - u7"])
def test_offsets_before_the_storage_are_left_out(text: str) -> None:
    read = assert_reads_as_torch(with_offset(text, "sin"))
    assert read is not None
    assert offsets(read, "sin") == {"0"}


@pytest.mark.parametrize("text", ["oo", "true", "Eq(u7, 3)", "__import__('os')", "u7("])
def test_offsets_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(SerializeError):
        deserialize(with_offset(text, "sin"))


@pytest.mark.parametrize("values", [("sin",), ("cos",), ("tan", "sin", "cos")])
def test_a_symbol_that_a_later_node_defines(values: tuple[str, ...]) -> None:
    text = f"Add(Mul(Integer(2), {UNBACKED.format(0)}), Integer(1))"
    read = assert_reads_as_torch(with_offset(text, *values))
    assert read is not None
    assert bindings(read) == {"item": ["u0"]}
    assert offsets(read, values[0]) == {"2*u0 + 1"}


def test_a_symbol_of_a_size_must_be_defined() -> None:
    """A node must define the symbol of a size, also if an earlier offset contains the symbol."""

    def edit(stored: Any) -> None:
        values = stored["graph_module"]["graph"]["tensor_values"]
        symbol = {"as_expr": {"expr_str": "u7 + 1", "hint": None}}
        values["sin"]["storage_offset"] = values["zeros"]["sizes"][0] = symbol
        stored["range_constraints"]["u7"] = {"min_val": 0, "max_val": None}

    written = edited(counted(), edit)
    with pytest.raises(AssertionError, match="expected no unbacked symbols"):
        torch_serialize.deserialize(written)
    with pytest.raises(SerializeError, match=r"the nodes .* do not define the symbols \['u7'\]"):
        deserialize(written)
