"""Values, names and files that no exporter makes: as torch writes and reads them, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import schema
from torch._export.serde import serialize as theirs
from torch.export import ExportedProgram, export
from torch.fx.traceback import NodeSource, NodeSourceAction

from fxpress import _native
from fxpress import serialize as ours
from fxpress._files.serde.schema import SCHEMA
from tests.support.deserialized import assert_reads_as_torch
from tests.support.reading_cases import edited
from tests.support.serialized import assert_serializes_as_torch, assert_travels_as_torch


class Chain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x * 2).relu() + 1


def chain() -> ExportedProgram:
    return export(Chain(), (torch.ones(2, 2),), strict=False)


# ---- names ----


def with_the_name(name: str) -> ours.SerializedArtifact:
    written = ours.serialize(chain())
    old, new = b'"relu"', json.dumps(name).encode()
    assert old in written.exported_program
    return replace(written, exported_program=written.exported_program.replace(old, new))


@pytest.mark.parametrize("name", ["é", "été_1", "名前", "x名_3_4"])
def test_names_beyond_ascii(name: str) -> None:
    """torch.fx uses different names for them."""
    assert_reads_as_torch(with_the_name(name))


@pytest.mark.parametrize("name", ["x²", "relu ²", "\x00"])
def test_names_that_are_no_identifiers(name: str) -> None:
    with pytest.raises(ours.SerializeError, match="is not an identifier"):
        ours.deserialize(with_the_name(name))


@pytest.mark.parametrize("count", [1, 7, 64])
def test_many_results_that_no_node_takes(count: int) -> None:
    class Splits(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x.split(1)
            return x + 1

    program = export(Splits(), (torch.ones(count, 2),), strict=False)
    for node in reversed(program.graph.nodes):
        if "getitem" in node.name:
            program.graph.erase_node(node)
    assert_travels_as_torch(program)


# ---- where a node comes from ----


def with_source(graph_id: Any) -> ExportedProgram:
    program = chain()
    node = next(n for n in program.graph.nodes if n.op == "call_function")
    source = NodeSource(node, "a pass", NodeSourceAction.CREATE)
    assert source.node_info is not None
    source.node_info.graph_id = graph_id
    node.meta["from_node"] = [source]
    return program


def test_sources_with_and_without_a_graph() -> None:
    assert_serializes_as_torch(with_source(1234))
    program = with_source(1234)
    node = next(n for n in program.graph.nodes if "from_node" in n.meta)
    node.meta["from_node"].append(NodeSource(None, "another pass", NodeSourceAction.REPLACE))
    assert_serializes_as_torch(program)


@pytest.mark.parametrize(
    ("graph_id", "error"), [(2**70, OverflowError), ("text", TypeError), (1.5, TypeError)]
)
def test_ids_of_graphs_that_are_no_addresses(graph_id: Any, error: type[Exception]) -> None:
    """torch writes whatever is there; ours counts graphs by their addresses."""
    with pytest.raises(ours.SerializeError) as caught:
        ours.serialize(with_source(graph_id))
    assert isinstance(caught.value.__cause__, error)


# ---- reading ----


@pytest.mark.parametrize("parts", [(1, 2), (1, 2.5), (0.5, -1), (-1, -1)])
def test_complex_numbers_of_integers_in_objects(parts: tuple[Any, Any]) -> None:
    """JSON has floats there; objects may have every number that complex() accepts."""
    argument = schema.Argument.create(as_complex=schema.ComplexValue(*parts))
    found, expected = (
        module.GraphModuleDeserializer().deserialize_input(argument) for module in (ours, theirs)
    )
    assert found == expected
    assert type(found) is type(expected) is complex


class Branches(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        b, c = torch.cond(x.sum() > 1, lambda x: (-x, x + 1), lambda x: (-x, x - 1), (x,))
        return a, b + c


@pytest.mark.parametrize("name", [None, ""])
@pytest.mark.parametrize("target", ["cond", "sin", "add", "sum"])
def test_nodes_without_a_name_of_their_own(target: str, name: str | None) -> None:
    """In files of older releases of torch, nodes have no names; their results name them."""
    program = export(Branches(), (torch.ones(2),), strict=False)

    def edit(stored: Any) -> None:
        graph = stored["graph_module"]["graph"]
        bodies = [
            value["arg"]["as_graph"]["graph"]
            for node in graph["nodes"]
            for value in node["inputs"]
            if "as_graph" in value["arg"]
        ]
        changed = 0
        for node in (n for each in (graph, *bodies) for n in each["nodes"]):
            if target in node["target"]:
                node["name"] = name
                changed += 1
        assert changed

    assert_reads_as_torch(edited(ours.serialize(program), edit))


# ---- what only the package's own calls can get wrong ----


@pytest.mark.parametrize("entry", [(), ("w", "record"), ["w", "r", None, True, False], 5])
def test_entries_of_a_config_that_are_none(entry: Any) -> None:
    with pytest.raises(TypeError, match="a tuple of five parts"):
        SCHEMA.encode_payload_config([entry])


def test_classes_of_the_schema_that_are_kinds_of_containers() -> None:
    class Listed(list):  # type: ignore[type-arg]
        pass

    for base in (Listed, dict):
        with pytest.raises(TypeError, match="a class of the schema is derived from"):
            _native.SchemaClasses(SCHEMA, [base], {}, lambda field, cls: field)
