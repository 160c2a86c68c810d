"""Canonical forms: against torch, under other orders and names, and where there is none."""

from __future__ import annotations

import copy
import dataclasses
import functools
import graphlib
import json
import random
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import schema
from torch._export.serde import serialize as torch_serialize
from torch.export import Dim, export

from fxpress import UnsupportedError, _native
from fxpress._files.serde import objects
from fxpress._files.serde.schema import TYPES, describe
from fxpress.serialize import (
    ExportedProgramDeserializer,
    _canonicalize_graph,
    canonicalize,
    serialize,
)
from tests.support.memory import check_no_blocks_leak
from tests.support.serialized import assert_canonical_as_torch


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor, k: int) -> Any:
        self.count.add_(1)
        y = torch.cond(x.sum() > 0, lambda x: self.first(x), lambda x: x.sin() + x.cos(), (x,))
        parts = torch.split(self.second(x), 2, 1)
        return {"a": y.topk(2).values, "b": x.shape[0] * 2, "c": torch.cat([x, y]), "d": parts}


@functools.cache
def text_of(dynamic: bool = True) -> bytes:
    torch.manual_seed(0)
    shapes = ({0: Dim("n", min=2)}, None) if dynamic else None
    program = export(Model(), (torch.randn(6, 4), 3), dynamic_shapes=shapes, strict=False)
    return serialize(program.run_decompositions()).exported_program


def read(stored: Any) -> Any:
    return torch_serialize._dict_to_dataclass(schema.ExportedProgram, stored)


@pytest.mark.parametrize("dynamic", [False, True])
def test_z154_to_z167_as_torch(dynamic: bool) -> None:
    text = text_of(dynamic)
    canonical = assert_canonical_as_torch(text, set())
    assert canonicalize(canonical) == canonical


def renamed(value: Any, names: dict[str, str]) -> Any:
    """The program with other names of values; the names of nodes, which are kept, stay."""
    if isinstance(value, list):
        return [renamed(item, names) for item in value]
    if isinstance(value, dict):
        is_node = "target" in value
        result = {names.get(k, k): renamed(v, names) for k, v in value.items()}
        if is_node:
            result["name"] = value["name"]
        return result
    return names.get(value, value) if isinstance(value, str) else value


def defined(argument: Any) -> set[str]:
    found: set[str] = set()
    for part in argument if isinstance(argument, list) else [argument]:
        if isinstance(part, dict):
            for key, inner in part.items():
                if key in ("name", "as_name") and isinstance(inner, str):
                    found.add(inner)
                elif isinstance(inner, (dict, list)) and key != "as_graph":
                    found |= defined(inner)
    return found


def shuffled(nodes: list[Any], pick: random.Random) -> list[Any]:
    """Another order of the nodes in which every value is there when it is used."""
    makers = {name: i for i, node in enumerate(nodes) for name in defined(node["outputs"])}
    waits = {
        i: {makers[n] for n in defined([a["arg"] for a in node["inputs"]]) if n in makers}
        for i, node in enumerate(nodes)
    }
    order: list[int] = []
    while len(order) < len(nodes):
        ready = [i for i in waits if i not in order and waits[i] <= set(order)]
        order.append(pick.choice(ready))
    return [nodes[i] for i in order]


@pytest.mark.parametrize("seed", range(20))
def test_orders_and_names_do_not_matter(seed: int) -> None:
    pick = random.Random(seed)
    stored = json.loads(text_of())
    expected = canonicalize(read(stored))
    other = copy.deepcopy(stored)
    graph = other["graph_module"]["graph"]
    graph["nodes"] = shuffled(graph["nodes"], pick)
    for table in ("tensor_values", "sym_int_values"):
        items = list(graph[table].items())
        pick.shuffle(items)
        graph[table] = dict(items)
    names = sorted({n for node in graph["nodes"] for n in defined(node["outputs"])})
    other["graph_module"] |= {
        "graph": renamed(graph, {n: f"v{pick.random()}" for n in names if n not in ("x", "k")}),
    }
    table = {}
    specs = other["graph_module"]["signature"]["output_specs"]
    for spec, output in zip(specs, other["graph_module"]["graph"]["outputs"], strict=True):
        (before,), (after,) = defined(spec), defined(output)
        table[before] = after
    other["graph_module"]["signature"]["output_specs"] = renamed(specs, table)
    found = canonicalize(read(other))
    # Only their positions distinguish nodes with equal functions and arguments.
    assert [n.target for n in found.graph_module.graph.nodes] == [
        n.target for n in expected.graph_module.graph.nodes
    ]
    torchs = torch_serialize.canonicalize(read(other))
    assert found == torchs


def two_definitions(stored: Any) -> None:
    nodes = stored["graph_module"]["graph"]["nodes"]
    nodes.append(copy.deepcopy(nodes[-1]))


def unknown_name(stored: Any) -> None:
    node = stored["graph_module"]["graph"]["nodes"][0]
    node["inputs"][0]["arg"] = {"as_tensor": {"name": "nobody"}}


def cycle(stored: Any) -> None:
    nodes = stored["graph_module"]["graph"]["nodes"]
    name = next(iter(defined(nodes[0]["outputs"])))
    nodes[0]["inputs"][0]["arg"] = {"as_tensor": {"name": name}}


def missing_spec(stored: Any) -> None:
    stored["graph_module"]["signature"]["input_specs"].pop()


def missing_output(stored: Any) -> None:
    stored["graph_module"]["graph"]["outputs"].pop()


@pytest.mark.parametrize(
    "damage",
    [two_definitions, unknown_name, cycle, missing_spec, missing_output],
    ids=lambda f: f.__name__,
)
def test_programs_without_a_canonical_form(damage: Callable[[Any], None]) -> None:
    stored = json.loads(text_of())
    damage(stored)
    for function in (torch_serialize.canonicalize, canonicalize):
        with pytest.raises(AssertionError):
            function(read(stored))


def test_a_signature_with_unknown_names() -> None:
    stored = json.loads(text_of())
    specs = stored["graph_module"]["signature"]["input_specs"]
    spec = next(s for s in specs if "parameter" in s)
    spec["parameter"]["arg"]["name"] = "nobody"
    with pytest.raises(KeyError):
        torch_serialize.canonicalize(read(stored))
    with pytest.raises(KeyError, match="nobody"):
        canonicalize(read(stored))


def test_z156_a_program_without_outputs() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> tuple[()]:
            return ()

    text = serialize(export(Nothing(), (torch.ones(2),), strict=False)).exported_program
    assert canonicalize(read(json.loads(text))).graph_module.graph.outputs == ()


def test_z164_names_in_dicts() -> None:
    stored = json.loads(text_of())
    nodes = stored["graph_module"]["graph"]["nodes"]
    node = next(n for n in nodes if "topk" in n["target"])
    maker = node["inputs"][0]["arg"]
    node["inputs"].append({"name": "options", "arg": {"as_string_to_argument": {"t": maker}}})
    nodes.remove(node)
    nodes.insert(0, node)
    canonical = canonicalize(read(stored))
    done: set[str] = set()
    for other in canonical.graph_module.graph.nodes:
        if "topk" in other.target:
            names = {a.as_tensor.name for a in (other.inputs[0].arg,)}
            held = other.inputs[-1].arg.as_string_to_argument["t"].as_tensor.name
            assert {held} == names
            assert held in done
        done |= {o.as_tensor.name for o in other.outputs if o.type == "as_tensor"}


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_graph_alone(kind: Any) -> None:
    for dynamic in (False, True):
        graph, other = (read(json.loads(text_of(dynamic))).graph_module.graph for _ in range(2))
        inputs, outputs = kind(reversed(graph.inputs)), kind(graph.outputs)
        before = copy.deepcopy((graph, inputs, outputs))
        found = _canonicalize_graph(inputs, outputs, graph, {"nobody"})
        assert (graph, inputs, outputs) == before  # torch's changes them
        expected = torch_serialize._canonicalize_graph(
            kind(reversed(other.inputs)), kind(other.outputs), other, {"nobody"}
        )
        assert found == expected
        assert list(found[1]) == list(expected[1])
    with pytest.raises(AssertionError, match="not in def_table"):
        _canonicalize_graph(inputs[:0], outputs, graph, set())


def test_what_is_not_a_program() -> None:
    for value in (None, {}, schema.TensorArgument(name="x")):
        with pytest.raises(AssertionError):
            canonicalize(value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("graph_module", 3, "ExportedProgram.graph_module cannot be int"),
        ("graph_module.graph.nodes", 3, "Graph.nodes cannot be int"),
        ("graph_module.graph.nodes", [3], "Graph.nodes cannot be int"),
        ("graph_module.graph.tensor_values", [], "Graph.tensor_values cannot be list"),
        ("graph_module.graph.is_single_tensor_return", 1, "is_single_tensor_return cannot be int"),
        ("graph_module.signature", None, "GraphModule.signature cannot be NoneType"),
        ("range_constraints", 3, "ExportedProgram.range_constraints cannot be int"),
        ("torch_version", 2.13, "ExportedProgram.torch_version cannot be float"),
        ("guards_code", ["a", 1], "ExportedProgram.guards_code cannot be int"),
    ],
)
def test_objects_are_of_the_schemas_shape(path: str, value: Any, message: str) -> None:
    program = read(json.loads(text_of()))
    *parents, last = path.split(".")
    setattr(functools.reduce(getattr, parents, program), last, value)
    with pytest.raises(TypeError, match=message):
        canonicalize(program)
    with pytest.raises((TypeError, AttributeError), match=message):
        ExportedProgramDeserializer().deserialize(program, {}, {})


def changeable(value: Any, found: dict[int, Any]) -> dict[int, Any]:
    """All objects of the schema, lists and dicts in a value, by id."""
    if isinstance(value, (list, tuple)):
        inside = list(value)
    elif isinstance(value, dict):
        inside = list(value.values())
    elif type(value).__module__ == schema.__name__ and not isinstance(value, int):
        inside = list(vars(value).values())
    else:
        return found
    if not isinstance(value, tuple):
        found[id(value)] = value
    for item in inside:
        changeable(item, found)
    return found


def test_nothing_that_can_change_is_shared() -> None:
    program = read(json.loads(text_of()))
    before = copy.deepcopy(program)
    canonical = canonicalize(program)
    mine = changeable(canonical, {})
    assert len(mine) > 500
    assert not mine.keys() & changeable(program, {}).keys()
    for graph in (canonical.graph_module.graph, _graph_inside(canonical)):
        for meta in graph.tensor_values.values():
            meta.sizes.append(meta.storage_offset)
            meta.device.type = "other"
    assert program == before


def _graph_inside(program: Any) -> Any:
    for node in program.graph_module.graph.nodes:
        for item in node.inputs:
            if item.arg.type == "as_graph":
                return item.arg.as_graph.graph
    raise AssertionError("no graph in an argument")


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda values, name: values.__setitem__(name, 5), "Graph.tensor_values cannot be int"),
        (lambda values, name: values.__setitem__(3, values[name]), "expected a str, got"),
        (lambda values, name: setattr(values[name], "sizes", [3]), "TensorMeta.sizes cannot be"),
        (lambda values, name: setattr(values[name], "dtype", "x"), "TensorMeta.dtype cannot be"),
        (lambda values, name: delattr(values[name], "layout"), "layout"),
        (lambda values, name: delattr(values[name].storage_offset, "_type"), "create to"),
    ],
)
def test_metadata_of_tensors_is_of_the_schemas_shape(
    change: Callable[[dict[Any, Any], str], None], message: str, inside: bool
) -> None:
    program = read(json.loads(text_of()))
    graph = _graph_inside(program) if inside else program.graph_module.graph
    change(graph.tensor_values, list(graph.tensor_values)[-1])

    def fails() -> None:
        with pytest.raises((TypeError, AttributeError, RuntimeError), match=message):
            canonicalize(program)

    check_no_blocks_leak(fails)


def test_a_schema_with_other_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    types = [describe(cls) for cls in TYPES.values()]
    next(fields for name, _, fields in types if name == "Node").append(("color", "str", None))
    monkeypatch.setattr(objects, "SCHEMA", _native.Schema(types))
    program = read(json.loads(text_of()))
    with pytest.raises(UnsupportedError, match=r"Node\.color.* does not support"):
        canonicalize(program)


def classes_in(annotation: Any) -> set[Any]:
    inside = typing.get_args(annotation)
    if inside:
        return set().union(*map(classes_in, inside))
    return {annotation} if dataclasses.is_dataclass(annotation) else set()


def test_facts_of_values_are_not_deep() -> None:
    """Their copies have no limit of depth: no class of theirs contains itself."""
    hints = typing.get_type_hints(schema.Graph)
    maps = [value for value in hints.values() if typing.get_origin(value) is dict]
    assert len(maps) == len([name for name in hints if name.endswith("_values")])
    contains: dict[Any, set[Any]] = {}
    open_classes = list(set().union(*map(classes_in, maps)))
    while open_classes:
        known = open_classes.pop()
        if known not in contains:
            fields = typing.get_type_hints(known).values()
            contains[known] = set().union(*map(classes_in, fields))
            open_classes += contains[known]
    assert schema.TensorMeta in contains
    graphlib.TopologicalSorter(contains).prepare()  # CycleError
