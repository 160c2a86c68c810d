"""Values on their way to Python: parts that are not there, lists that are one object."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch import fx, nn

from fxpress._graphs import engine as native_engine
from tests.support.engine import assert_same, by_torch, engine, interpreter_module

aten = torch.ops.aten


def gradients(graph: fx.Graph) -> tuple[fx.Node, fx.Node]:
    """A call that returns a tuple whose first and last tensors are undefined; its input."""
    x, weight = graph.placeholder("x"), graph.placeholder("weight")
    y = graph.call_function(aten.conv2d.default, (x, weight))
    wanted = [False, True, False]
    args = (y, x, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, wanted)
    return graph.call_function(aten.convolution_backward.default, args), x


@pytest.mark.parametrize("use", ["output", "part of the output", "function", "list of a function"])
def test_tensors_that_are_undefined_are_none(use: str) -> None:
    graph = fx.Graph()
    result, x = gradients(graph)
    graph.output(
        {
            "output": lambda: result,
            "part of the output": lambda: ([result], x),
            "function": lambda: graph.call_function(len, (result,)),
            "list of a function": lambda: graph.call_function(list, ([result],)),
        }[use]()
    )
    args = (torch.randn(1, 1, 4, 4), torch.randn(1, 1, 2, 2))
    theirs = by_torch(nn.Module(), graph, *args)
    for _ in range(2):
        assert_same(native_engine.run(nn.Module(), graph, args), theirs)


def caller(inner: fx.Graph) -> tuple[nn.Module, fx.Graph, fx.Node]:
    """A root with `inner` as its module, a graph for it, and that graph's input."""
    root = nn.Module()
    root.inner = interpreter_module(inner)
    graph = fx.Graph()
    return root, graph, graph.placeholder("x")


def same_and_inlined(root: nn.Module, graph: fx.Graph, x: torch.Tensor) -> None:
    theirs = by_torch(root, graph, x)
    with engine():
        for _ in range(2):
            assert_same(native_engine.run(root, graph, (x,)), theirs)
    info = native_engine.plan_info(graph)
    assert info is not None
    assert info["inlined"] == ("inner" in root._modules)


def test_a_list_that_an_inlined_module_hands_back_is_one_object() -> None:
    inner = fx.Graph()
    inner.output(inner.placeholder("a"))
    root, graph, x = caller(inner)
    parts = graph.call_function(aten.unbind.int, (x,))
    returned = graph.call_module("inner", (parts,))
    graph.call_method("append", (parts, 1))
    lengths = [graph.call_function(len, (value,)) for value in (returned, parts)]
    graph.output((*lengths, graph.call_function(operator.is_, (returned, parts))))
    same_and_inlined(root, graph, torch.ones(2, 2))


def test_a_list_twice_in_the_output_of_an_inlined_module_is_one_object() -> None:
    inner = fx.Graph()
    parts = inner.call_function(aten.unbind.int, (inner.placeholder("a"),))
    inner.output((parts, parts))
    root, graph, x = caller(inner)
    returned = graph.call_module("inner", (x,))
    first, second = (graph.call_function(operator.getitem, (returned, i)) for i in range(2))
    graph.call_method("append", (first, 1))
    graph.output([graph.call_function(len, (value,)) for value in (first, second)])
    same_and_inlined(root, graph, torch.ones(2, 2))


def test_a_list_in_the_result_of_an_operator_is_one_object() -> None:
    root, graph = nn.Module(), fx.Graph()
    x = graph.placeholder("x")
    histogram = graph.call_function(aten.histogramdd.int_bins, (x, 3))
    first, second = (graph.call_function(operator.getitem, (histogram, 1)) for _ in range(2))
    graph.call_method("append", (first, 1))
    lengths = [graph.call_function(len, (value,)) for value in (first, second)]
    graph.output((*lengths, graph.call_function(operator.getitem, (histogram, 0))))
    same_and_inlined(root, graph, torch.rand(5, 2))


@pytest.mark.parametrize("sections", [2**62, -1, 0])
def test_exceptions_of_the_standard_library(sections: int) -> None:
    graph = fx.Graph()
    args: tuple[Any, ...] = (graph.placeholder("x"), sections)
    graph.output(graph.call_function(aten.tensor_split.sections, args))
    with pytest.raises(Exception) as theirs:
        by_torch(nn.Module(), graph, torch.ones(4))
    with pytest.raises(Exception) as ours:
        native_engine.run(nn.Module(), graph, (torch.ones(4),))
    assert type(ours.value) is type(theirs.value)
    assert str(ours.value) == str(theirs.value)
