"""Graphs and modules that were damaged or edited: results and errors of torch's Interpreter."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import fx, nn

from fxpress._graphs import engine as native_engine
from tests.support.engine import (
    assert_same,
    by_torch,
    engine,
    interpreter_module,
    unflattened,
)

aten = torch.ops.aten


def assert_as_torch(graph: fx.Graph, *args: Any) -> None:
    """The same result, or an error of the same type and text, each time."""
    root = nn.Module()
    expected: Any = None
    failed: Exception | None = None
    try:
        expected = by_torch(root, graph, *args)
    except Exception as error:
        failed = error
    for _ in range(2):
        if failed is None:
            assert_same(native_engine.run(root, graph, args), expected)
            continue
        with pytest.raises(type(failed)) as caught:
            native_engine.run(root, graph, args)
        assert str(failed).startswith(str(caught.value))


@pytest.mark.parametrize("which", ["later", "foreign"])
def test_a_value_inside_of_a_list_that_is_not_there(which: str) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    node = graph.call_function(len, ([x],))
    later = graph.call_function(torch.neg, (x,))
    graph.output((node, later))
    other = later if which == "later" else fx.Graph().placeholder("y")
    node.args = ([x, {"a": other}],)
    assert_as_torch(graph, torch.ones(2))


def test_a_node_of_an_unknown_kind() -> None:
    graph = fx.Graph()
    node = graph.call_function(torch.neg, (graph.placeholder("x"),))
    graph.output(node)
    node.op = "odd"
    assert_as_torch(graph, torch.ones(2))


def test_nodes_that_are_in_no_ring() -> None:
    graph = fx.Graph()
    node = graph.call_function(torch.neg, (graph.placeholder("x"),))
    graph.output(node)
    following = node._next
    node._next = None  # type: ignore[assignment]
    with pytest.raises(RuntimeError, match="graph was modified during the call"):
        native_engine.run(nn.Module(), graph, (torch.ones(2),))
    node._next = following
    assert_as_torch(graph, torch.ones(2))


@pytest.mark.parametrize("size", [["rows", 2], [2, "rows"], [1, "rows", -1], ["rows", "rows"]])
def test_lists_of_constants_and_computed_numbers(size: list[Any]) -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    rows = graph.call_function(aten.sym_size.int, (x, 0))
    arguments = [rows if part == "rows" else part for part in size]
    graph.output(graph.call_function(aten.view.default, (x, arguments)))
    assert_as_torch(graph, torch.arange(4.0).reshape(2, 2))
    assert_as_torch(graph, torch.arange(6.0).reshape(3, 2))  # another size, for which it may fail


@pytest.fixture
def pair() -> Iterator[Any]:
    """An operator that returns a tensor and a list."""
    with torch.library._scoped_library("fxpress_rare", "DEF") as library:
        library.define("pair(Tensor x) -> (Tensor, Tensor[])")
        library.impl("pair", lambda x: (x + 1, [x.neg(), x * 2]), "CompositeExplicitAutograd")
        yield torch.ops.fxpress_rare.pair.default


@pytest.mark.parametrize("returned", ["all", "list", "part", "tensor", "twice"])
def test_a_list_in_a_tuple(pair: Any, returned: str) -> None:
    """A list is one object wherever it comes up."""
    graph = fx.Graph()
    both = graph.call_function(pair, (graph.placeholder("x"),))
    tensor = graph.call_function(operator.getitem, (both, 0))
    values = graph.call_function(operator.getitem, (both, 1))
    part = graph.call_function(operator.getitem, (values, 1))
    results = {"all": both, "list": values, "part": part, "tensor": tensor}
    graph.output(results.get(returned, (both, values, [both])))
    assert_as_torch(graph, torch.ones(2))
    if returned == "twice":
        made = native_engine.run(nn.Module(), graph, (torch.ones(2),))
        assert made[0][1] is made[1]
        assert made[2][0] is made[0]


@pytest.mark.parametrize("returned", ["value", "two values", "tuple of it"])
@pytest.mark.parametrize("many", [aten.topk.default, aten.split.Tensor], ids=["tuple", "list"])
def test_several_results_that_pass_through_a_module(many: Any, returned: str) -> None:
    """A list is one object on both sides of the call; a tuple is compared by value."""
    inner = fx.Graph()
    x = inner.placeholder("x")
    inner.output({"value": x, "two values": (x, x), "tuple of it": (x,)}[returned])
    root = nn.Module()
    root.inner = interpreter_module(inner)
    graph = fx.Graph()
    results = graph.call_function(many, (graph.placeholder("x"), 2))
    called = graph.call_module("inner", (results,))
    part = graph.call_function(operator.getitem, (results, 0))
    graph.output((results, called, part))
    expected = by_torch(root, graph, torch.arange(4.0))
    with engine():
        for _ in range(2):
            made = native_engine.run(root, graph, (torch.arange(4.0),))
            assert_same(made, expected)
            passed = made[1] if returned == "value" else made[1][0]
            assert passed is made[0] or many is aten.topk.default


class Inner(nn.Module):
    def forward(self, x: torch.Tensor, by: int) -> torch.Tensor:
        return x * by


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x, 3), 5)


EDITS: dict[str, Callable[[list[Any]], object]] = {
    "longer": lambda calls: calls.insert(1, calls[0]),
    "shorter": lambda calls: calls.pop(),
    "turned": lambda calls: calls.reverse(),
    "emptied": lambda calls: calls.clear(),
}


def results_around(edit: Callable[[list[Any]], object], x: torch.Tensor) -> list[Any]:
    """Results, or types of errors, before the calls of the dispatcher are edited, and after."""
    module = unflattened(Twice(), x, preserve=("inner",))
    calls = module.inner._call_modules
    kept = list(calls)

    def run() -> Any:
        module.inner._num_calls = 0
        try:
            return module(x)
        except Exception as error:
            return type(error)

    results = [run(), run()]
    edit(calls)
    results += [run(), run()]
    calls[:] = kept
    return [*results, run(), run()]


@pytest.mark.parametrize("change", EDITS)
def test_calls_of_a_dispatcher_that_are_edited_between_runs(change: str) -> None:
    x = torch.randn(3)
    theirs = results_around(EDITS[change], x)
    with engine():
        ours = results_around(EDITS[change], x)
    for mine, other in zip(ours, theirs, strict=True):
        assert_same(mine, other)


def deep(value: Any, container: Callable[[Any], Any]) -> Any:
    for _ in range(100_000):
        value = container(value)
    return value


@pytest.mark.parametrize("is_output", [False, True])
@pytest.mark.parametrize("container", [lambda x: [x], lambda x: (x,), lambda x: {"a": x}, slice])
def test_arguments_of_any_depth(container: Callable[[Any], Any], is_output: bool) -> None:
    """They run; torch's Interpreter overflows the stack."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    taken: list[Any] = []
    node = graph.output(x) if is_output else graph.call_function(taken.append, (x,))
    if not is_output:
        graph.output(node)
    node._args = (deep(x, container),)
    made = native_engine.run(nn.Module(), graph, (torch.ones(2),))
    value = made if is_output else taken.pop()
    del made
    while not isinstance(value, torch.Tensor):
        is_slice = isinstance(value, slice)
        value = value.stop if is_slice else value["a"] if isinstance(value, dict) else value[0]
    assert value.equal(torch.ones(2))


@pytest.mark.parametrize("is_output", [False, True])
def test_arguments_that_contain_themselves(is_output: bool) -> None:
    items: list[Any] = []
    table: dict[str, Any] = {"items": items}
    items.append(table)
    for cyclic in (items, table):
        graph = fx.Graph()
        x = graph.placeholder("x")
        node = graph.output(x) if is_output else graph.call_function(len, (x,))
        node._args = (cyclic,)
        with pytest.raises(ValueError, match="an argument of a node contains itself"):
            native_engine.run(nn.Module(), graph, (torch.ones(2),))
