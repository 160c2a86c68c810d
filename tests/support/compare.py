"""Compare graphs and split modules, and torch's tables of the nodes of a graph."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fxpress import _native


def same_value(ours: Any, theirs: Any) -> bool:
    """Whether both are one object, or equal constants of one type."""
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same_value, ours, theirs))
    if isinstance(ours, Mapping):
        return list(ours) == list(theirs) and all(same_value(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, slice):
        return same_value(
            (ours.start, ours.stop, ours.step), (theirs.start, theirs.stop, theirs.step)
        )
    if isinstance(ours, torch.Tensor):
        return False
    if isinstance(ours, float):
        return bits_of(ours) == bits_of(theirs)
    if isinstance(ours, complex):
        return same_value((ours.real, ours.imag), (theirs.real, theirs.imag))
    return bool(ours == theirs)


def bits_of(number: float) -> bytes:
    """Return the bits of a number: 0.0 and -0.0 differ, and all NaNs are equal."""
    return struct.pack("<d", math.nan if math.isnan(number) else number)


def by_name(argument: Any, graph: Graph) -> Any:
    """Return an argument with marked names in place of nodes; containers keep their types."""

    def name(node: Node) -> Any:
        assert node.graph is graph, f"{node} belongs to another graph"
        return ("%", node.name)

    return torch.fx.node.map_arg(argument, name)


def assert_same_node(ours: Node, theirs: Node) -> None:
    at = f"node {theirs.name}"
    assert ours.name == theirs.name, at
    assert ours.op == theirs.op, at
    assert ours.target == theirs.target, at
    assert type(ours.target) is type(theirs.target), at
    for field in ("args", "kwargs"):
        mine = by_name(getattr(ours, field), ours.graph)
        other = by_name(getattr(theirs, field), theirs.graph)
        assert same_value(mine, other), f"{at}: {field}: {mine} != {other}"
    assert ours.type is theirs.type or ours.type == theirs.type, at
    assert list(ours.meta) == list(theirs.meta), at
    assert all(ours.meta[k] is theirs.meta[k] for k in ours.meta), f"{at}: meta is not shared"
    assert [u.name for u in ours.users] == [u.name for u in theirs.users], f"{at}: users"
    inputs = [[i.name for i in n.all_input_nodes] for n in (ours, theirs)]
    assert inputs[0] == inputs[1], f"{at}: inputs"
    assert ours._sort_key == theirs._sort_key, at
    assert ours._erased == theirs._erased, at
    assert ours.__dict__ == theirs.__dict__ == {}, at


def lookup_table(graph: Graph) -> dict[Any, list[str]]:
    table = graph._find_nodes_lookup_table.table
    return {key: [n.name for n in nodes] for key, nodes in table.items() if nodes}


def assert_same_graph(ours: Graph, theirs: Graph) -> None:
    assert len(ours.nodes) == len(theirs.nodes)
    assert [n.name for n in ours.nodes] == [n.name for n in theirs.nodes]
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        assert_same_node(mine, other)
    assert [n.name for n in reversed(ours.nodes)] == [n.name for n in reversed(theirs.nodes)]
    mine, other = ours._graph_namespace, theirs._graph_namespace
    assert mine._used_names == other._used_names
    assert list(mine._base_count.items()) == list(other._base_count.items())
    named = [[(n.name, v) for n, v in space._obj_to_name.items()] for space in (mine, other)]
    assert named[0] == named[1]
    assert list(lookup_table(ours).items()) == list(lookup_table(theirs).items())
    assert list(vars(ours)) == list(vars(theirs))
    assert type(ours._codegen) is type(theirs._codegen)
    ours.lint()


def assert_same_source(ours: Graph, theirs: Graph) -> None:
    """The code that fxpress generates for its graph equals the code that torch generates."""
    generated = _native.python_source(ours)
    if generated is None:
        return  # left to torch's generator on purpose
    expected = theirs.python_code("self")
    assert generated[0] == expected.src
    assert list(generated[1].items()) == list(expected.globals.items())
    assert generated[2:4] == (expected._lineno_map, expected._prologue_start)


def assert_same_module(ours: GraphModule, theirs: GraphModule, *, code: bool = True) -> None:
    """Assert equal graphs, attributes and source, of two modules and of their children.

    `code`: also compile the code, and compare the classes and the attributes that compiling adds.
    """
    assert_same_graph(ours.graph, theirs.graph)
    assert ours.graph.owning_module is ours
    assert isinstance(ours, torch.fx.GraphModule)
    assert set(ours.meta) == set(theirs.meta)
    assert ours.meta.get("partition_names") == theirs.meta.get("partition_names")
    assert_same_source(ours.graph, theirs.graph)
    if code:
        assert type(ours).__mro__[1:] == type(theirs).__mro__[1:]
        assert ours.code == theirs.code
        assert ours._lineno_map == theirs._lineno_map
        assert ours._prologue_start == theirs._prologue_start
        assert list(vars(ours)) == list(vars(theirs))
        assert set(vars(type(ours))) == set(vars(type(theirs)))
    assert type(ours).__name__ == type(theirs).__name__
    assert ours.training == theirs.training
    assert list(ours._parameters) == list(theirs._parameters)
    assert all(ours._parameters[k] is theirs._parameters[k] for k in ours._parameters)
    assert list(ours._buffers) == list(theirs._buffers)
    assert all(ours._buffers[k] is theirs._buffers[k] for k in ours._buffers)
    assert_same_children(ours, theirs, code=code)
    assert list(ours.state_dict()) == list(theirs.state_dict())


def assert_same_children(ours: torch.nn.Module, theirs: torch.nn.Module, *, code: bool) -> None:
    assert list(ours._modules) == list(theirs._modules)
    for name, child in ours._modules.items():
        other = theirs._modules[name]
        if child is other:
            continue
        assert type(child).__name__ == type(other).__name__, name
        if isinstance(child, GraphModule) and isinstance(other, GraphModule):
            assert_same_module(child, other, code=code)
        elif child is not None and other is not None:
            assert list(child._parameters) == list(other._parameters), name
            assert_same_children(child, other, code=code)
