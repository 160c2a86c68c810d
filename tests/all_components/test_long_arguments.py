"""Arguments of very many or deep containers, some of them shared: as torch, and once each."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.fx.passes.split_module as torch_split
from torch import Tensor, nn
from torch.export import ExportedProgram, export
from torch.export import unflatten as torch_unflatten
from torch.fx import Graph, GraphModule, Node
from torch.fx.immutable_collections import immutable_list

from fxpress.split_module import split_module, split_module_simple
from fxpress.unflatten import unflatten
from tests.support.compare import assert_same_graph, assert_same_module
from tests.support.split_cases import clean
from tests.support.unflatten_compare import assert_same_unflattened
from tests.support.versions import needs_parity


def wide(x: Node) -> Any:
    return [[x] for _ in range(1500)]


def deep(x: Node) -> Any:
    value: Any = x
    for _ in range(150):  # Python reads no more than 200 brackets
        value = (value,)
    return [value, x]


def mixed(x: Node) -> Any:
    return [*({"a": [x], "b": x} for _ in range(800)), deep(x)]


def slices(x: Node) -> Any:
    return [slice(None, x, 1) for _ in range(1500)]


def shared(x: Node) -> Any:
    part = immutable_list([x, immutable_list([x])])
    return immutable_list([part] * 1500)


SHAPES = [wide, deep, mixed, shared]


def set_argument(node: Node, place: int, shape: Callable[[Node], Any], x: Node) -> None:
    """torch.fx would copy each part."""
    value = shape(x)
    args = (*node.args[:place], value, *node.args[place + 1 :])
    node.args = args
    if shape is shared:
        node._args = args  # type: ignore[attr-defined]


@pytest.mark.parametrize("shape", [*SHAPES, slices])
def test_split_module(shape: Callable[[Node], Any]) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.relu, (x,))
    z = graph.call_function(max, (y, y), {"key": shape(y), "default": 1})
    set_argument(z, 1, shape, y)
    set_argument(graph.output((z, y)), 0, shape, z)
    module = GraphModule(nn.Module(), graph)
    places = {node: i for i, node in enumerate(graph.nodes)}
    made = [
        f(module, nn.Module(), lambda node: min(places[node], 2))
        for f in (split_module, torch_split.split_module)
    ]
    assert_same_module(*made)


@needs_parity
@pytest.mark.parametrize("shape", [*SHAPES, slices])
def test_split_module_simple(shape: Callable[[Node], Any]) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.relu, (x,))
    z = graph.call_function(max, (y, y))
    set_argument(z, 1, shape, y)
    graph.output(z)
    module = GraphModule({}, graph)
    made = []
    for implementation in (split_module_simple, torch_split.split_module_simple):
        clean(graph)
        made.append(implementation(module, {y: 0, z: 1}))
    assert_same_graph(made[0].graph, made[1].graph)
    for name, child in made[0].named_children():
        assert_same_graph(child.graph, getattr(made[1], name).graph)


@pytest.fixture
def operators() -> Iterator[None]:
    with torch.library._scoped_library("fxpress_long", "DEF") as library:
        library.define("join(Tensor x, Tensor[] values) -> Tensor")
        library.impl("join", lambda x, values: x + len(values), "CompositeExplicitAutograd")
        yield


class Inner(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.fxpress_long.join(x.sin(), [x])  # type: ignore[no-any-return]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.inner(x))  # type: ignore[no-any-return]


def program(shape: Callable[[Node], Any]) -> ExportedProgram:
    made = export(Model(), (torch.ones(2),), strict=False)
    for node in made.graph.nodes:
        if "join" in str(node.target):
            set_argument(node, 1, shape, node.args[0])
    return made


@pytest.mark.parametrize("shape", SHAPES)
def test_unflatten(shape: Callable[[Node], Any], operators: None) -> None:
    made = program(shape)
    ours, theirs = unflatten(made), torch_unflatten(copy.deepcopy(made))
    assert_same_unflattened(ours, theirs)


def test_u90_calls_with_slices_of_their_own_values_are_merged(operators: None) -> None:
    made = program(slices)
    names = dict(unflatten(made).named_modules())
    assert list(names) == ["", "inner"]
    # torch prints the names of nodes in a slice, which differ from call to call.
    assert "inner@1" in dict(torch_unflatten(made).named_modules())
