"""A program of one node with something of each kind, and what is damaged in it."""

from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import pytest

from fxpress._files.format.package import Allowance, InspectionError
from fxpress._tools.view.graphs import graphs_of_text
from fxpress._tools.view.model_explorer import plain_graph
from tests.support.memory import check_collector_is_as_it_was

META = {
    "dtype": 7,
    "sizes": [{"as_int": 2}, {"as_expr": {"expr_str": "Symbol('s0')", "hint": None}}],
    "strides": [{"as_int": 3}, {"as_int": 1}],
    "device": {"type": "cpu", "index": None},
}
BODY = {
    "inputs": [{"as_tensor": {"name": "y"}}],
    "outputs": [{"as_tensor": {"name": "z"}}],
    "tensor_values": {},
    "nodes": [
        {
            "target": "torch.ops.aten.neg.default",
            "inputs": [{"name": "self", "arg": {"as_tensor": {"name": "y"}}, "kind": 1}],
            "outputs": [{"as_tensor": {"name": "z"}}],
            "metadata": {},
        }
    ],
}
NODE = {
    "target": "torch.ops.higher_order.map_impl",
    "name": "mapped",
    "inputs": [
        {"name": "", "arg": {"as_graph": {"name": "body", "graph": BODY}}, "kind": 1},
        {"name": "xs", "arg": {"as_tensors": [{"name": "w"}, {"name": "x"}]}, "kind": 1},
        {"name": "size", "arg": {"as_int": 3}, "kind": 1},
    ],
    "outputs": [{"as_tensors": [{"name": "a"}, {"name": "b"}]}],
    "metadata": {
        "stack_trace": 'File "m.py", line 1, in forward\n    return map(f, x)',
        "nn_module_stack": "k,,lib.Root;k,part,lib.Part",
        "from_node": '[{"name": "old", "target": "map", "pass_name": "trace"}]',
        "torch_fn": "map_1;function.map",
    },
}
PROGRAM: dict[str, Any] = {
    "graph_module": {
        "graph": {
            "inputs": [{"as_tensor": {"name": "w"}}, {"as_tensor": {"name": "x"}}],
            "outputs": [{"as_tensor": {"name": "a"}}],
            "tensor_values": {"w": META, "x": META, "a": META},
            "nodes": [NODE],
        },
        "signature": {
            "input_specs": [
                {"buffer": {"arg": {}, "buffer_name": "part.w", "persistent": True}},
                {"user_input": {"arg": {}}},
            ],
            "output_specs": [{"user_output": {"arg": {}}}],
        },
    },
}
GRAPH = ("graph_module", "graph")
FIRST = (*GRAPH, "nodes", 0)


def edited(place: tuple[Any, ...], value: Any) -> bytes:
    """The program with another value at a place; without one where that is `del`."""
    document = held = copy.deepcopy(PROGRAM)
    for key in place[:-1]:
        held = held[key]
    if value is del_:
        del held[place[-1]]
    else:
        held[place[-1]] = value
    return json.dumps(document).encode()


def del_() -> None:
    """Stands for no value."""


def attributes(item: dict[str, Any]) -> dict[str, Any]:
    return {pair["key"]: pair["value"] for pair in item["attrs"]}


def plain(text: bytes) -> list[dict[str, Any]]:
    return [plain_graph(graph) for graph in graphs_of_text(text, "model", "here")]


def test_a_program() -> None:
    outer, body = plain(json.dumps(PROGRAM).encode())
    w, x, mapped, output = outer["nodes"]
    assert (w["label"], w["namespace"]) == ("w", "part: Part")
    assert attributes(w)["kind"] == "buffer"
    assert attributes(w)["persistent"] == "True"
    assert attributes(w)["state"] == "part.w"
    assert (x["label"], x["namespace"]) == ("x", "inputs")
    assert attributes(x)["shape"] == "float32[2, s0]"
    assert mapped["subgraphIds"] == [body["id"]] == ["model/mapped/0"]
    assert {"0": "body", "size": "3", "name": "mapped"}.items() <= attributes(mapped).items()
    assert attributes(mapped)["from"] == "old (map), trace"
    edges = [{"sourceNodeId": f"input {i}", "sourceNodeOutputId": "0"} for i in range(2)]
    expected = [{**edge, "targetNodeInputId": str(i)} for i, edge in enumerate(edges)]
    assert mapped["incomingEdges"] == expected
    results = [attributes(each) for each in mapped["outputsMetadata"]]
    assert [each["__tensor_tag"] for each in results] == ["a", "b"]
    assert ["shape" in each for each in results] == [True, False]
    assert attributes(mapped)["users"] == {"type": "node_ids", "nodeIds": [output["id"]]}
    assert [node["label"] for node in body["nodes"]] == ["y", "neg", "outputs"]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("graph_module",), del_, "record 'here' has no field 'graph_module'"),
        (
            ("graph_module",),
            [1],
            "record 'here' is damaged: expected an object, got a list of 1 item",
        ),
        ((*GRAPH, "tensor_values"), 3, "here': graph is damaged: expected an object, got 0x3"),
        (
            (*GRAPH, "nodes"),
            {"a": 1},
            "here': graph is damaged: expected a list, got an object with 1 field",
        ),
        ((*GRAPH, "nodes"), del_, "here': graph has no field 'nodes'"),
        ((*GRAPH, "inputs"), None, "here': graph.inputs is damaged: expected a list, got None"),
        ((*GRAPH, "outputs"), None, "here': graph.outputs is damaged: expected a list, got None"),
        (
            (*GRAPH, "nodes", 0),
            1.5,
            r"here': graph.nodes\[0\] is damaged: expected an object, got 1.5",
        ),
        ((*FIRST, "metadata"), [], r"graph.nodes\[0\] is damaged: expected an object"),
        (
            (*FIRST, "metadata", "nn_module_stack"),
            1,
            r"graph.nodes\[0\] is damaged: expected a string",
        ),
        ((*FIRST, "metadata", "from_node"), "[", r"graph.nodes\[0\] is damaged"),
        (
            (*FIRST, "metadata", "from_node"),
            "[" * 99,
            r"graph.nodes\[0\] is damaged: its values are nested more than 60",
        ),
        (
            (*FIRST, "metadata", "custom"),
            1,
            r"graph.nodes\[0\] is damaged: expected a string, got 0x1",
        ),
        ((*FIRST, "target"), None, r"graph.nodes\[0\] is damaged: expected a string, got None"),
        ((*FIRST, "target"), del_, r"graph.nodes\[0\] has no field 'target'"),
        ((*FIRST, "name"), 1, r"graph.nodes\[0\] is damaged: expected a string, got 0x1"),
        ((*FIRST, "inputs"), "a" * 90, r"is damaged: expected a list, got .a{36}...$"),
        ((*FIRST, "inputs", 1, "name"), None, "is damaged: expected a string, got None"),
        ((*FIRST, "inputs", 1, "arg"), del_, r"graph.nodes\[0\] has no field 'arg'"),
        (
            (*FIRST, "inputs", 1, "arg"),
            {"as_tensor": {"name": "q"}},
            "'q' is used before it is computed",
        ),
        ((*FIRST, "inputs", 0, "arg", "as_graph"), {}, r"graph.nodes\[0\] has no field 'graph'"),
        ((*FIRST, "inputs", 0, "arg", "as_graph", "graph"), 1, r"nodes\[0\].0 is damaged"),
        ((*FIRST, "outputs"), None, r"graph.nodes\[0\] is damaged: expected a list, got None"),
        ((*FIRST, "outputs"), [{"as_tensor": {"name": 1}}], "'a' is used before it is computed"),
        ((*GRAPH, "tensor_values", "a"), 1, r"graph.nodes\[0\] is damaged: expected an object"),
        ((*GRAPH, "tensor_values", "w"), {}, "graph.inputs has no field 'dtype'"),
        (("graph_module", "signature", "input_specs", 0), {}, "expected a union with one field"),
        (
            ("graph_module", "signature", "input_specs", 0, "buffer", "persistent"),
            del_,
            "graph.inputs has no field 'persistent'",
        ),
        (
            ("graph_module", "signature", "input_specs", 0, "buffer", "buffer_name"),
            3,
            "graph.inputs is damaged: expected a string, got 0x3",
        ),
        (("graph_module", "signature", "input_specs"), 1, "expected a list, got 0x1"),
    ],
)
def test_damage_is_named(place: tuple[Any, ...], value: Any, message: str) -> None:
    with pytest.raises(InspectionError, match=message):
        graphs_of_text(edited(place, value), "model", "here")


@pytest.mark.parametrize("text", [b"", b"{", b'{"a": 01}', b'{"a": "\xff"}', b"{} {}", b"[" * 501])
def test_what_is_no_json_is_refused(text: bytes) -> None:
    with pytest.raises(InspectionError, match="record 'here' "):
        graphs_of_text(text, "model", "here")


def test_unions_whose_other_kinds_are_null() -> None:
    place = ("graph_module", "signature", "input_specs", 1)
    text = edited(place, {"buffer": None, "user_input": {"arg": {}}})
    assert plain(text) == plain(json.dumps(PROGRAM).encode())


def test_what_json_allows_changes_nothing() -> None:
    """Spaces, escapes, an order of keys, and keys that come twice, of which the last one counts."""
    expected = plain(json.dumps(PROGRAM).encode())
    spaced = json.dumps(PROGRAM, indent=3)
    escaped = spaced.replace("name", "n\\u0061me").replace('"x"', '"\\u0078"')
    twice = spaced.replace('"target":', '"target": [1], "target":')
    for text in (spaced, escaped, twice, json.dumps(PROGRAM, sort_keys=True)):
        assert plain(text.encode())[0]["nodes"] == expected[0]["nodes"]


def test_memory_is_charged() -> None:
    text = json.dumps(PROGRAM).encode()
    for number in range(2):  # for the text, and for the graphs
        memory = [Allowance(0), Allowance(0)]
        before = memory[number].memory_left
        graphs_of_text(text, "model", "here", *memory)
        assert memory[number].memory_left < before
        memory[number].memory_left = 1000
        with pytest.raises(InspectionError, match="needs too much memory"):
            graphs_of_text(text, "model", "here", *memory)


@pytest.mark.parametrize("text", [json.dumps(PROGRAM).encode(), edited((*FIRST, "inputs"), {})])
def test_the_collector_is_as_it_was(text: bytes) -> None:
    def read() -> None:
        with contextlib.suppress(InspectionError):
            graphs_of_text(text, "model", "here")

    check_collector_is_as_it_was(read)
