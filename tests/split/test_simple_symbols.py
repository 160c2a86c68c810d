"""Symbols in split_module_simple (S-55): who gets the binder of a symbol as an input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx.passes.split_module as theirs
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fxpress.split_module as ours
from tests.support.compare import assert_same_graph
from tests.support.split_cases import clean
from tests.support.versions import needs_parity


def symbolic_tensor() -> torch.Tensor:
    mode = FakeTensorMode(shape_env=ShapeEnv())
    return mode.from_tensor(torch.randn(5, 3), static_shapes=False)


def inputs_of(split: GraphModule, name: str) -> list[str]:
    graph = getattr(split, name).graph
    return [n.name for n in graph.find_nodes(op="placeholder")]


def assert_same_split(module: GraphModule, ids: dict[Node, int]) -> GraphModule:
    """Split by torch and by us: equal graphs; returns ours."""
    clean(module.graph)
    expected = theirs.split_module_simple(module, ids)
    clean(module.graph)
    actual = ours.split_module_simple(module, ids)
    assert_same_graph(actual.graph, expected.graph)
    for (name, child), (other_name, other) in zip(
        actual.named_children(), expected.named_children(), strict=True
    ):
        assert name == other_name
        assert_same_graph(child.graph, other.graph)  # type: ignore[arg-type]
    return actual


class Bound:
    """x of a symbolic shape, whose sizes placeholders bind, or nodes that the test adds."""

    def __init__(self, *, placeholders: bool) -> None:
        self.example = symbolic_tensor()
        self.graph = Graph()
        if placeholders:
            for i, name in enumerate(("s0", "s1")):
                size = self.graph.placeholder(name)
                size.meta["example_value"] = self.example.shape[i]
        self.x = self.graph.placeholder("x")
        if placeholders:  # else torch wants x's symbols as inputs of the partition that binds them
            self.x.meta["example_value"] = self.example

    def call(self, function: Any, *args: Any, example: Any = None) -> Node:
        node = self.graph.call_function(function, args)
        if example is not None:
            node.meta["example_value"] = example
        return node

    def size(self, dim: int) -> Node:
        bind = torch.ops.aten.sym_size.int
        return self.call(bind, self.x, dim, example=self.example.shape[dim])

    def module(self, value: Any) -> GraphModule:
        self.graph.output(value)
        return GraphModule({}, self.graph)


@needs_parity
def test_binders_among_the_placeholders() -> None:
    bound = Bound(placeholders=True)
    a = bound.call(torch.relu, bound.x, example=bound.example)
    b = bound.call(torch.neg, a, example=bound.example)
    split = assert_same_split(bound.module(b), {a: 0, b: 1})
    assert inputs_of(split, "submod_0") == ["x", "s0", "s1"]
    assert inputs_of(split, "submod_1") == ["relu", "s0", "s1"]
    value = torch.randn(5, 3)
    assert torch.equal(split(5, 3, value), -value.relu())


@needs_parity
def test_binders_in_another_partition_become_its_outputs() -> None:
    bound = Bound(placeholders=False)
    size = bound.size(0)
    a = bound.call(torch.relu, bound.x, example=bound.example)
    b = bound.call(torch.neg, a, example=bound.example)
    split = assert_same_split(bound.module(b), {size: 0, a: 0, b: 1})
    assert inputs_of(split, "submod_1") == ["relu", "sym_size_int"]
    assert len(split.submod_0.graph.output_node().args[0]) == 2
    value = torch.randn(5, 3)
    assert torch.equal(split(value), -value.relu())


@needs_parity
def test_a_binder_that_appears_between_two_uses() -> None:
    """The second use brings the symbol along, though the value is an input already."""
    bound = Bound(placeholders=False)
    a = bound.call(torch.relu, bound.x, example=bound.example)
    b = bound.call(torch.neg, a)
    size = bound.size(0)
    c = bound.call(torch.add, a, b)
    split = assert_same_split(bound.module((c, size)), {a: 0, b: 1, size: 0, c: 1})
    assert inputs_of(split, "submod_1") == ["relu", "sym_size_int"]
    value = torch.randn(5, 3)
    assert torch.equal(split(value)[0], value.relu() - value.relu())


@needs_parity
def test_s55_a_binder_in_the_using_partition_is_no_input_of_it() -> None:
    """torch makes it an input of the partition that computes it: its own call cannot have it."""
    bound = Bound(placeholders=False)
    a = bound.call(torch.relu, bound.x, example=bound.example)
    size = bound.size(0)
    b = bound.call(torch.mul, a, size)
    module = bound.module(b)
    ids = {a: 0, size: 1, b: 1}
    with pytest.raises(KeyError):
        theirs.split_module_simple(module, ids)
    clean(module.graph)
    split = ours.split_module_simple(module, ids)
    assert inputs_of(split, "submod_1") == ["x", "relu"]
    value = torch.randn(5, 3)
    assert torch.equal(split(value), value.relu() * 5)


@needs_parity
@pytest.mark.parametrize("example", [torch.float32, "text", object()])
def test_example_values_without_symbols_around_are_not_looked_at(example: Any) -> None:
    bound = Bound(placeholders=False)
    bound.x.meta["example_value"] = example
    a = bound.call(torch.relu, bound.x, example=example)
    b = bound.call(torch.neg, a)
    split = assert_same_split(bound.module(b), {a: 0, b: 1})
    assert inputs_of(split, "submod_1") == ["relu"]


@needs_parity
def test_symbols_of_any_kind() -> None:
    """Any value whose expression is a symbol defines it, also symbolic bools and test classes."""

    class Symbolic:
        def __init__(self, size: Any) -> None:
            self.node = size.node

    bound = Bound(placeholders=False)
    key = bound.call(torch.neg, bound.x, example=Symbolic(bound.example.shape[1]))
    a = bound.call(torch.relu, bound.x, example=bound.example)
    b = bound.call(torch.neg, a)
    split = assert_same_split(bound.module(b), {key: 0, a: 1, b: 2})
    assert inputs_of(split, "submod_2") == ["relu", "neg"]
