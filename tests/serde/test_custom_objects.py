"""Objects of TorchScript's classes: constants, inputs and arguments, written and read as torch."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch.export import ExportedProgram, export
from torch.export.graph_signature import ConstantArgument, CustomObjArgument, InputKind, InputSpec

import fxpress
from fxpress.serialize import SerializeError, canonicalize, deserialize, serialize
from tests.support.deserialized import assert_same_read_graph
from tests.support.reading_cases import edited
from tests.support.serialized import assert_serializes_as_torch, assert_travels_as_torch

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings(
    "ignore:Unable to execute the generated python source code"  # objects have no source
)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).sin()


def packed(value: float = 1.0) -> Any:
    weight = torch.quantize_per_tensor(torch.full((4, 4), value), 0.1, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weight, None)


def with_object(kind: InputKind, held: Any = None) -> ExportedProgram:
    """A program that is given an object as its first input."""
    held = packed() if held is None else held
    program = export(Model(), (torch.ones(2, 4),), strict=False)
    graph, signature = program.graph, program.graph_signature
    with graph.inserting_before(next(iter(graph.nodes))):
        node = graph.placeholder("packed")
    spec = CustomObjArgument("packed", held._type().qualified_name(), None)
    node.meta["val"] = spec
    (sin,) = graph.find_nodes(op="call_function", target=aten.sin.default)
    sin.target = torch.ops.quantized.linear_dynamic.default
    sin.args = (*sin.args, node)
    if kind == InputKind.CUSTOM_OBJ:
        signature.input_specs.insert(0, InputSpec(kind, spec, "inner.packed"))
        program.constants["inner.packed"] = held
    else:
        signature.input_specs.insert(0, InputSpec(kind, spec, None))
        program.constants["packed"] = held
        program.module_call_graph[0].signature.inputs.insert(0, spec)
    program.graph_module.recompile()
    return program


def test_an_object_of_the_module() -> None:
    program = with_object(InputKind.CUSTOM_OBJ)
    assert_travels_as_torch(program)
    graph = json.loads(serialize(program).exported_program)["graph_module"]["graph"]
    assert list(graph["custom_obj_values"]) == ["packed"]
    read = deserialize(serialize(program), allow_pickle=True)
    value = read.graph.find_nodes(op="placeholder")[0].meta["val"]
    assert (value.name, value.class_fqn) == ("packed", packed()._type().qualified_name())
    assert read.graph_signature.input_specs[0].target == "inner.packed"


def test_an_object_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch 2.13 logs that it falls back to pickles with a message that cannot be formatted.
    monkeypatch.setattr(torch_serialize.log, "disabled", True)
    program = with_object(InputKind.USER_INPUT)
    written = assert_serializes_as_torch(program)
    read, theirs = deserialize(written, allow_pickle=True), torch_serialize.deserialize(written)
    assert_same_read_graph(read.graph, theirs.graph, "")
    assert read.graph_signature.input_specs[1:] == theirs.graph_signature.input_specs[1:]
    for program in (read, theirs):
        spec = program.graph_signature.input_specs[0]
        assert (spec.kind, spec.target, type(spec.arg)) == (
            InputKind.USER_INPUT,
            None,
            ConstantArgument,
        )
        assert spec.arg.name == "packed"
        assert spec.arg.value is program.constants["packed"]


def test_z165_an_object_of_the_user_has_its_name_in_the_signature() -> None:
    """torch's signature has the earlier name of the object."""
    program = with_object(InputKind.USER_INPUT)
    stored = fxpress.serialize._bytes_to_dataclass(
        torch_serialize.ExportedProgram, serialize(program).exported_program
    )
    ours, theirs = (f(stored, {"packed"}) for f in (canonicalize, torch_serialize.canonicalize))
    named = [
        p.graph_module.signature.input_specs[1].user_input.arg.as_custom_obj for p in (ours, theirs)
    ]
    assert named[0].name == ours.graph_module.graph.inputs[1].as_custom_obj.name
    assert named[1].name == "packed"
    named[1].name = named[0].name
    assert ours == theirs


def test_an_object_of_the_user_that_the_file_does_not_hold() -> None:
    program = with_object(InputKind.USER_INPUT)
    del program.constants["packed"]
    written = assert_serializes_as_torch(program)
    with pytest.raises(KeyError, match="packed"):
        torch_serialize.deserialize(written)
    with pytest.raises(SerializeError, match="the file does not contain an object named 'packed'"):
        deserialize(written, allow_pickle=True)


def test_a_literal_that_the_file_does_not_hold() -> None:
    program = with_object(InputKind.CUSTOM_OBJ)

    def edit(stored: Any) -> None:
        node = stored["graph_module"]["graph"]["nodes"][-1]
        node["inputs"][1]["arg"]["as_custom_obj"]["name"] = "other"

    with pytest.raises(SerializeError, match="the file does not contain an object named 'other'"):
        deserialize(edited(serialize(program), edit), allow_pickle=True)


@pytest.mark.parametrize("damage", ["argument", "constant", "target"])
def test_signatures_that_are_not_valid(damage: str) -> None:
    program = with_object(InputKind.CUSTOM_OBJ)
    spec = program.graph_signature.input_specs[0]
    if damage == "argument":
        spec.arg = program.graph_signature.input_specs[1].arg
    elif damage == "constant":
        del program.constants["inner.packed"]
    else:
        spec.target = None
    with pytest.raises(Exception) as theirs:
        program.validate()
    with pytest.raises(type(theirs.value)) as ours:
        serialize(program)
    assert str(ours.value) == str(theirs.value)


def test_the_spec_of_an_object() -> None:
    program = with_object(InputKind.CUSTOM_OBJ)
    spec = program.graph_signature.input_specs[0]
    mine, other = (
        module.GraphModuleSerializer(program.graph_signature, [])
        for module in (fxpress.serialize, torch_serialize)
    )
    assert mine.serialize_argument_spec(spec.arg) == other.serialize_argument_spec(spec.arg)
    assert mine.serialize_input_spec(spec) == other.serialize_input_spec(spec)


def test_objects_enter_the_hash() -> None:
    hashes = set()
    for kind in (InputKind.CUSTOM_OBJ, InputKind.USER_INPUT):
        program = with_object(kind)
        first = fxpress.graph_hash(program)
        assert first == fxpress.graph_hash(with_object(kind))
        hashes.add(first)
    named_otherwise = with_object(InputKind.CUSTOM_OBJ)
    named_otherwise.graph.find_nodes(op="placeholder")[0]._rename("another")
    named_otherwise.graph_signature.input_specs[0].arg.name = "another"
    assert fxpress.graph_hash(named_otherwise) in hashes
    of_another_class = with_object(InputKind.CUSTOM_OBJ)
    value = of_another_class.graph.find_nodes(op="placeholder")[0].meta["val"]
    value.class_fqn = "another"
    hashes.add(fxpress.graph_hash(of_another_class))
    hashes.add(fxpress.graph_hash(with_object(InputKind.CUSTOM_OBJ, packed(2.0))))
    assert len(hashes) == 4


def test_the_place_where_objects_differ() -> None:
    first, second = (with_object(InputKind.CUSTOM_OBJ, packed(value)) for value in (1.0, 2.0))
    assert fxpress.diff(first, first) == []
    (found,) = fxpress.diff(first, second)
    assert found.path == "graph_module.graph.inputs[custom_obj 0].known"


def test_objects_of_nodes_that_differ() -> None:
    first, second = (with_object(InputKind.CUSTOM_OBJ) for _ in range(2))
    (call,) = second.graph.find_nodes(
        op="call_function", target=torch.ops.quantized.linear_dynamic.default
    )
    call.args = (call.args[0], packed(2.0))
    assert [found.path.rpartition(".inputs.")[2] for found in fxpress.diff(first, second)] == [
        "W_prepack.as_custom_obj.name"
    ]


def test_a_constant_with_the_name_of_an_object() -> None:
    for module in (fxpress.serialize, torch_serialize):
        program = with_object(InputKind.CUSTOM_OBJ)
        call = list(program.graph.nodes)[-2]
        call.args = (call.args[0], packed())
        program.constants["_custom_obj_0"] = packed()
        with pytest.raises(AssertionError, match="'_custom_obj_0' already exists"):
            module.serialize(program)
