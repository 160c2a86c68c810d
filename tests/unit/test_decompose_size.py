"""_decompose_size_nodes: rows F62 and F63, and what torch gets wrong in them."""

from __future__ import annotations

import operator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxpress.split_module import _decompose_size_nodes
from tests.support.versions import needs_parity


def sized(dynamic: tuple[int, ...]) -> tuple[Graph, Node, Node]:
    """A graph with x.size(), x of shape (5, 3, 7) with some dimensions dynamic."""
    graph = Graph()
    x = graph.placeholder("x")
    tensor = torch.randn(5, 3, 7)
    for i in dynamic:
        torch._dynamo.mark_dynamic(tensor, i)
    for i in {0, 1, 2} - set(dynamic):
        torch._dynamo.mark_static(tensor, i)
    from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext

    sizes = [DimDynamic.DYNAMIC if i in dynamic else DimDynamic.STATIC for i in range(3)]
    x.meta["example_value"] = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(
        tensor, symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes)
    )
    return graph, x, graph.call_method("size", (x,))


def run(graph: Graph, *args: Any) -> Any:
    graph.lint()
    return GraphModule({}, graph)(*args)


@pytest.mark.parametrize("dynamic", [(), (0,), (1,)])
@needs_parity
def test_same_as_torch(dynamic: tuple[int, ...]) -> None:
    from torch.fx.passes.split_module import _decompose_size_nodes as torch_decompose

    texts = []
    for decompose in (torch_decompose, _decompose_size_nodes):
        graph, x, size = sized(dynamic)
        graph.output(graph.call_method("view", (x, size)))
        decompose(GraphModule({}, graph))
        texts.append(graph.python_code("self").src)
    assert texts[0] == texts[1]


def test_f63_dimensions_stand_in_their_order() -> None:
    graph, x, size = sized((0, 1, 2))
    graph.output(graph.call_method("view", (x, size)))
    _decompose_size_nodes(GraphModule({}, graph))
    nodes = graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)
    assert [n.args for n in nodes] == [(x, 0), (x, 1), (x, 2)]
    assert [n.meta["example_value"] for n in nodes] == list(x.meta["example_value"].shape)
    value = torch.randn(5, 3, 7)
    assert torch.equal(run(graph, value), value)


def test_f62_nested_and_keyword_users() -> None:
    graph, x, size = sized((0,))
    zeros = graph.call_function(torch.zeros, (), {"size": size})
    both = graph.call_function(torch.broadcast_to, (x, [size][0]))
    nested = graph.call_function(tuple, ([size, 1],))
    graph.output((zeros, nested))
    graph.erase_node(both)
    _decompose_size_nodes(GraphModule({}, graph))
    assert not graph.find_nodes(op="call_method", target="size")
    out, pair = run(graph, torch.randn(4, 3, 7))
    assert out.shape == (4, 3, 7)
    assert pair == ((4, 3, 7), 1)


def test_items_of_a_size() -> None:
    graph, x, size = sized((1,))
    first = graph.call_function(operator.getitem, (size, 0))
    second = graph.call_function(operator.getitem, (size, 1))
    rest = graph.call_function(operator.getitem, (size, slice(1, None)))
    graph.output((first, second, rest, size))
    _decompose_size_nodes(GraphModule({}, graph))
    assert run(graph, torch.randn(5, 4, 7)) == (5, 4, (4, 7), (5, 4, 7))


def test_f63_left_alone() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    unknown = graph.call_method("size", (x,))
    single = graph.call_method("size", (x, 0))
    graph.output((unknown, single))
    before = graph.python_code("self").src
    _decompose_size_nodes(GraphModule({}, graph))
    assert graph.python_code("self").src == before
