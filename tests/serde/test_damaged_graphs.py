"""Files with damaged graphs: missing names, invalid names, and wrong types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import schema
from torch._export.serde import serialize as torch_serialize
from torch.export import ExportedProgram, export
from torch.export.graph_signature import (
    ConstantArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
)

from fxpress.serialize import GraphModuleDeserializer, SerializeError, deserialize, serialize
from tests.support.deserialized import assert_reads_as_torch
from tests.support.reading_cases import edited, node_of, top
from tests.support.serialized import assert_travels_as_torch


class Given(nn.Module):
    """A module with a number among its inputs."""

    def forward(self, x: Tensor, times: int) -> Tensor:
        return x * times


def given() -> ExportedProgram:
    return export(Given(), (torch.ones(2), 3), strict=False)


def graph_of(stored: Any) -> Any:
    return stored["graph_module"]["graph"]


def specs_of(stored: Any) -> Any:
    return stored["graph_module"]["signature"]["input_specs"]


def list_as_input(stored: Any) -> None:
    graph_of(stored)["inputs"][1] = {"as_ints": [1, 2]}


def symbol_without_name(stored: Any) -> None:
    graph_of(stored)["inputs"][1] = {"as_sym_int": {"as_int": 3}}


def single_result(stored: Any) -> None:
    graph_of(stored)["is_single_tensor_return"] = True
    graph_of(stored)["outputs"].append({"as_int": 1})


def single_constant(stored: Any) -> None:
    graph_of(stored)["is_single_tensor_return"] = True
    graph_of(stored)["outputs"] = [{"as_int": 1}]


def graph_as_output(stored: Any) -> None:
    empty = dict(graph_of(stored), inputs=[], outputs=[], nodes=[])
    graph_of(stored)["outputs"][0] = {"as_graph": {"name": "body", "graph": empty}}


def unknown_argument(stored: Any) -> None:
    node_of(stored, "mul")["inputs"][0]["name"] = "nothing"


def stack_of_pairs(stored: Any) -> None:
    node_of(stored, "mul")["metadata"]["nn_module_stack"] = "key,path;key"


DAMAGE: dict[Callable[[Any], None], str] = {
    list_as_input: "Invalid input type: input 1 of a graph",
    symbol_without_name: "input 1 of a graph: expected a name, found a constant",
    single_result: "expected one tensor as the output of a graph, found 2 outputs",
    single_constant: "expected one tensor as the output of a graph, found 1 outputs",
    graph_as_output: "the graph returns body, which does not have a value",
    stack_of_pairs: "an entry of nn_module_stack has 2 parts, not 3: 'key,path'",
    unknown_argument: "does not have an argument 'nothing'",
}


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda f: f.__name__)
def test_what_is_wrong_is_said(damage: Callable[[Any], None]) -> None:
    with pytest.raises(SerializeError, match=DAMAGE[damage]):
        deserialize(edited(serialize(given()), damage))


def test_inputs_without_a_name_are_numbered() -> None:
    def edit(stored: Any) -> None:
        specs_of(stored)[1] = {"user_input": {"arg": {"as_int": 3}}}

    artifact = edited(serialize(given()), edit)
    assert_reads_as_torch(artifact)
    read = deserialize(artifact)
    assert [n.name for n in read.graph.find_nodes(op="placeholder")] == ["x", "arg1"]


def test_names_that_are_not_ascii() -> None:
    program = given()
    (mul,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
    mul._rename("größe_1")
    program.graph_signature.output_specs[0].arg.name = mul.name
    assert_travels_as_torch(program)


def test_a_constant_whose_name_is_none() -> None:
    """A file cannot contain such a name, but a signature in memory can."""
    reader = GraphModuleDeserializer()
    spec = InputSpec(InputKind.USER_INPUT, ConstantArgument("not a name", 3), None)
    reader.signature = ExportGraphSignature([spec], [])
    stored = schema.Graph(
        inputs=[schema.Argument.create(as_int=3)],
        outputs=[],
        nodes=[],
        tensor_values={},
        sym_int_values={},
        sym_bool_values={},
    )
    with pytest.raises(SerializeError, match="'not a name' cannot be the name of a node"):
        reader.deserialize_graph(stored)


def test_arguments_in_another_order_than_the_schema() -> None:
    def edit(stored: Any) -> None:
        node_of(stored, "topk")["inputs"].reverse()

    artifact = edited(serialize(top()), edit)
    read = deserialize(artifact)
    theirs = torch_serialize.deserialize(artifact)
    nodes = [next(n for n in p.graph.nodes if "topk" in str(n.target)) for p in (read, theirs)]
    assert str((nodes[0].args, nodes[0].kwargs)) == str((nodes[1].args, nodes[1].kwargs))
    assert nodes[0].args[1] == 2
