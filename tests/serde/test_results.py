"""Results of nodes: None, nested lists, dicts and unused results, as torch."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch.export import ExportedProgram, export
from torch.fx import Node

from fxpress.serialize import SerializeError, deserialize, serialize
from tests.support.deserialized import assert_reads_as_torch
from tests.support.reading_cases import edited, node_of, top
from tests.support.serialized import assert_serializes_as_torch, assert_travels_as_torch

aten = torch.ops.aten
hop = torch.ops.higher_order


def fill(xs: list[Tensor]) -> None:
    for x in xs:
        x.fill_(1)


def split(x: Tensor) -> tuple[list[Tensor], Tensor, list[Tensor]]:
    return [x + 1, x + 2], x * 2, [x + 3]


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    with torch.library._scoped_library("fxpress_results", "DEF") as library:
        library.define("fill(Tensor(a!)[] xs) -> ()")
        library.impl("fill", fill, "CompositeExplicitAutograd")
        library.define("split(Tensor x) -> (Tensor[], Tensor, Tensor[])")
        library.impl("split", split, "CompositeExplicitAutograd")
        yield


class Backward(nn.Module):
    """A backward that does not compute the gradient of the input."""

    def forward(self, grad: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        wanted = [False, True, True]
        _, of_weight, of_bias = aten.convolution_backward(
            grad, x, weight, [2], [1], [0], [1], False, [0], 1, wanted
        )
        return of_weight, of_bias


class Fills(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x.clone(), y.clone()
        torch.ops.fxpress_results.fill([x, y])
        return x + y


class Splits(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        first, second, third = torch.ops.fxpress_results.split(x)
        return first[0] + first[1] + second + third[0]


def backward() -> ExportedProgram:
    inputs = torch.ones(1, 2, 2), torch.ones(1, 2, 2), torch.ones(2, 2, 1)
    return export(Backward(), inputs, strict=False)


def fills() -> ExportedProgram:
    return export(Fills(), (torch.ones(2), torch.ones(2)), strict=False).run_decompositions()


def splits() -> ExportedProgram:
    return export(Splits(), (torch.ones(2),), strict=False)


def of(program: ExportedProgram, target: str) -> Node:
    return next(n for n in program.graph.nodes if target in str(n.target))


def outputs_of(program: ExportedProgram, target: str) -> list[str]:
    stored = json.loads(serialize(program).exported_program)
    return [next(iter(o)) for o in node_of(stored, target)["outputs"]]


@pytest.mark.parametrize(
    ("make", "target", "kinds"),
    [
        (backward, "convolution_backward", ["as_none", "as_tensor", "as_tensor"]),
        (fills, "auto_functionalized_v2", ["as_none", "as_tensor", "as_tensor"]),
        (splits, "split", ["as_tensors", "as_tensor", "as_tensors"]),
    ],
    ids=["operator", "higher order operator", "lists"],
)
def test_several_results(
    make: Callable[[], ExportedProgram], target: str, kinds: list[str]
) -> None:
    program = make()
    assert_travels_as_torch(program)
    assert outputs_of(program, target) == kinds


def test_nobody_takes_a_none() -> None:
    program = backward()
    taken = next(n for n in program.graph.nodes if n.op != "output" and n.meta["val"] is None)
    program.graph.erase_node(taken)
    assert_travels_as_torch(program)


def test_nobody_takes_a_list_within_results() -> None:
    program = splits()
    first, second, third = of(program, "split").users
    output = program.graph.output_node()
    output.args = ((second,),)
    program.graph_signature.output_specs[0].arg.name = second.name
    for node in reversed(list(program.graph.nodes)):
        if node.op == "call_function" and node is not second and not node.users:
            program.graph.erase_node(node)
    assert {first, third}.isdisjoint(program.graph.nodes)
    assert_travels_as_torch(program)
    stored = json.loads(serialize(program).exported_program)
    names = [
        [t["name"] for t in o.get("as_tensors", [])] for o in node_of(stored, "split")["outputs"]
    ]
    assert names == [["split_unused_0_0", "split_unused_0_1"], [], ["split_unused_2_0"]]


def test_a_none_within_a_list_is_left_out() -> None:
    program = splits()
    node = of(program, "split")
    lists, rest, last = node.meta["val"]
    node.meta["val"] = ([*lists, None], rest, last)
    written = assert_serializes_as_torch(program)
    stored = node_of(json.loads(written.exported_program), "split")
    assert len(stored["outputs"][0]["as_tensors"]) == 2


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("target", [aten.sin.default, hop.print])
def test_the_only_result_is_none(target: Any, count: int) -> None:
    program = top()
    add = of(program, "add.Tensor")
    for _ in range(count):
        args = (add.args[0],) if target is aten.sin.default else ("text",)
        with program.graph.inserting_before(add):
            node = program.graph.call_function(target, args)
        node.meta["val"] = None
    assert_travels_as_torch(program)
    read = deserialize(serialize(program))
    names = [n.name for n in read.graph.nodes if n.target == target]
    stem = "sin_default" if target is aten.sin.default else "print"
    assert names == [f"{stem}_unused", f"{stem}_unused_1"][:count]


def test_a_dict_of_results_that_nobody_takes() -> None:
    program = fills()
    node = of(program, "auto_functionalized_v2")
    _, first, second = node.meta["val"]
    node.meta["val"] = {1: first, 2: second, "third": first}
    written = assert_serializes_as_torch(program)
    (tensors,) = node_of(json.loads(written.exported_program), "auto_functionalized")["outputs"]
    assert [t["name"] for t in tensors["as_tensors"]] == [
        "getitem_1",
        "getitem_2",
        f"{node.name}_unused_third",
    ]


@pytest.mark.parametrize("odd", [None, 3, [None]], ids=repr)
def test_results_that_cannot_be_in_a_dict_or_a_list(odd: Any) -> None:
    program = fills()
    node = of(program, "auto_functionalized_v2")
    first, second = node.meta["val"][1:]
    for value in ({1: first, 2: odd}, ([first, odd], first, second)):
        node.meta["val"] = value
        for write in (torch_serialize.serialize, serialize):
            with pytest.raises(SerializeError, match=r"Serialize list output with type .* nyi"):
                write(program)


@pytest.mark.parametrize("make", [backward, fills], ids=["operator", "higher order operator"])
def test_a_result_of_an_unknown_type(make: Callable[[], ExportedProgram]) -> None:
    program = make()
    node = next(n for n in program.graph.nodes if isinstance(n.meta.get("val"), tuple))
    node.meta["val"] = (*node.meta["val"][:2], torch.float32)
    for write in (torch_serialize.serialize, serialize):
        with pytest.raises(SerializeError, match=node.name):
            write(program)


def test_a_getitem_without_an_index() -> None:
    program = backward()
    node = of(program, "convolution_backward")
    next(iter(node.users)).args = (node,)
    with pytest.raises(IndexError):
        torch_serialize.serialize(program)
    with pytest.raises(SerializeError, match="getitem does not have an index") as caught:
        serialize(program)
    assert isinstance(caught.value.__cause__, IndexError)


def test_a_user_that_is_not_a_getitem() -> None:
    program = backward()
    node = of(program, "convolution_backward")
    next(iter(node.users)).target = aten.select.int
    for write in (torch_serialize.serialize, serialize):
        with pytest.raises(SerializeError, match="is not a getitem node"):
            write(program)


def test_a_node_without_a_result_as_an_argument() -> None:
    program = export(Fills(), (torch.ones(2), torch.ones(2)), strict=False)
    fill = of(program, "fill")
    of(program, "add.Tensor").args = (fill, 1)
    with pytest.raises(AssertionError, match="'fill' not in def_table"):
        torch_serialize.serialize(program)
    with pytest.raises(SerializeError, match="add") as caught:
        serialize(program)
    assert "'fill' not in def_table" in str(caught.value.__cause__)


def test_a_name_that_another_value_has() -> None:
    program = splits()
    output, node = program.graph.output_node(), of(program, "split")
    x = program.graph.find_nodes(op="placeholder")[0]
    output.args = ((x,),)
    for unused in reversed(list(program.graph.nodes)):
        if unused.op == "call_function" and unused is not node:
            program.graph.erase_node(unused)
    x._rename(f"{node.name}_unused_0_0")
    program.graph_signature.input_specs[0].arg.name = x.name
    program.graph_signature.output_specs[0].arg.name = x.name
    for write in (torch_serialize.serialize, serialize):
        with pytest.raises(SerializeError, match="split_unused_0_0") as caught:
            write(program)
        assert isinstance(caught.value.__cause__, AssertionError)


# ---- damaged files ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["single", "several", "within"])
def test_a_result_without_a_name(kind: str) -> None:
    nothing = {"as_device": {"type": "cpu", "index": None}}

    def edit(stored: Any) -> None:
        outputs = node_of(stored, "split")["outputs"]
        if kind == "single":
            outputs[:] = [nothing]
        elif kind == "several":
            outputs[1] = nothing
        else:
            outputs[0] = {"as_ints": [1]}

    artifact = edited(serialize(splits()), edit)
    with pytest.raises(Exception):  # noqa: B017
        torch_serialize.deserialize(artifact)
    with pytest.raises(SerializeError, match="does not have a name"):
        deserialize(artifact)


def test_a_none_in_place_of_a_tensor() -> None:
    def edit(stored: Any) -> None:
        node_of(stored, "linear")["outputs"] = [{"as_none": True}]

    artifact = edited(serialize(top()), edit)
    for read in (torch_serialize.deserialize, deserialize):
        with pytest.raises(Exception, match="linear"):
            read(artifact)
    assert_reads_as_torch(artifact)
