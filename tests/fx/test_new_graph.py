"""Graphs that native code creates equal the result of `torch.fx.Graph()`."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from fxpress.split_module import split_module
from tests.support.memory import check_no_blocks_leak


def _flat() -> GraphModule:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_function(operator.add, (x, x)))
    return GraphModule(torch.nn.Module(), graph)


def _split() -> GraphModule:
    return split_module(_flat(), None, lambda node: 0)


def _facts(value: Any) -> Any:
    """Return the class of an attribute of a graph, and of its items, in order."""
    if isinstance(value, Node):
        fields = (value.op, value.name, value.target, value.type, value.args, value.kwargs)
        rest = (value._input_nodes, value.users, value.meta, value._repr_fn, vars(value))
        return fields, rest, type(value.kwargs)
    if isinstance(value, (dict, set)):
        return type(value), getattr(value, "default_factory", None)
    if type(value).__module__ == "torch.fx.graph":
        return type(value), {name: _facts(each) for name, each in vars(value).items()}
    return value


def _attributes(graph: Graph) -> list[tuple[str, Any]]:
    changed = ("_owning_module", "_len", "_insert")
    return [(name, None if name in changed else _facts(v)) for name, v in vars(graph).items()]


def test_attributes() -> None:
    made = _split()
    for graph in (made.graph, made.submod_0.graph):
        assert type(graph) is Graph
        assert _attributes(graph) == _attributes(Graph())
        assert graph._insert == graph._root.prepend
        assert graph._root.graph is graph


def test_graphs_share_no_part() -> None:
    made = _split()

    def parts(value: Any) -> list[int]:
        if isinstance(value, (dict, set)):
            return [id(value)]
        if type(value).__module__ == "torch.fx.graph":
            return [id(value), *(i for each in vars(value).values() for i in parts(each))]
        return []

    first, second = parts(made.graph), parts(made.submod_0.graph)
    assert len(first) == len(parts(Graph()))
    assert not set(first) & set(second)


def test_another_constructor_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = Graph.__init__
    called = []

    def constructor(self: Graph, *args: Any, **kwargs: Any) -> None:
        called.append(self)
        theirs(self, *args, **kwargs)

    flat = _flat()
    monkeypatch.setattr(Graph, "__init__", constructor)
    made = split_module(flat, None, lambda node: 0)
    assert {id(graph) for graph in called} == {id(made.graph), id(made.submod_0.graph)}


def test_an_error_of_another_constructor(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Graph) -> None:
        raise MemoryError("no more graphs")

    flat = _flat()
    monkeypatch.setattr(Graph, "__init__", refuse)
    with pytest.raises(MemoryError, match="no more graphs"):
        split_module(flat, None, lambda node: 0)
    assert not any(hasattr(node, "_fx_partition") for node in flat.graph.nodes)


def test_an_error_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Node) -> None:
        raise MemoryError("no way to insert")

    def fail() -> None:
        with pytest.raises(MemoryError, match="no way to insert"):
            split_module(flat, None, lambda node: 0)

    flat = _flat()
    monkeypatch.setattr(Node, "prepend", property(refuse))
    fail()
    check_no_blocks_leak(fail)
