"""_decompose_size_nodes: rows S-62 and S-63, and torch's bugs in it."""

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


def test_s63_dimensions_stand_in_their_order() -> None:
    graph, x, size = sized((0, 1, 2))
    graph.output(graph.call_method("view", (x, size)))
    _decompose_size_nodes(GraphModule({}, graph))
    nodes = graph.find_nodes(op="call_function", target=torch.ops.aten.sym_size.int)
    assert [n.args for n in nodes] == [(x, 0), (x, 1), (x, 2)]
    assert [n.meta["example_value"] for n in nodes] == list(x.meta["example_value"].shape)
    value = torch.randn(5, 3, 7)
    assert torch.equal(run(graph, value), value)


def test_s62_nested_and_keyword_users() -> None:
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


def test_s63_left_alone() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    unknown = graph.call_method("size", (x,))
    single = graph.call_method("size", (x, 0))
    graph.output((unknown, single))
    before = graph.python_code("self").src
    _decompose_size_nodes(GraphModule({}, graph))
    assert graph.python_code("self").src == before


@pytest.mark.parametrize("nested", [False, True])
def test_s62_size_that_is_returned(nested: bool) -> None:
    """torch splices the dimensions into the output's arguments, of which only the first counts."""
    graph, x, size = sized((1,))
    graph.output([size] if nested else size)
    _decompose_size_nodes(GraphModule({}, graph))
    assert len(graph.output_node().args) == 1
    result = run(graph, torch.randn(5, 4, 7))
    assert result == ([(5, 4, 7)] if nested else (5, 4, 7))


INDICES: dict[str, Any] = {
    "node": lambda i: i,
    "slice from a node": lambda i: slice(i, None),
    "slice to a node": lambda i: slice(None, i, 1),
    "slice with a step": lambda i: slice(None, None, -1),
    "from the end": lambda i: -1,
    "bool": lambda i: True,
}


@pytest.mark.parametrize("index", INDICES)
def test_s62_items_of_a_size_that_are_not_known_yet(index: str) -> None:
    graph, x, size = sized((1,))
    i = graph.placeholder("i")
    viewed = graph.call_method("view", (x, size))
    item = graph.call_function(operator.getitem, (size, INDICES[index](i)))
    graph.output((viewed, item))
    value = torch.randn(5, 4, 7)
    expected = run(graph, value, 1)
    _decompose_size_nodes(GraphModule({}, graph))
    assert not graph.find_nodes(op="call_method", target="size")
    result = run(graph, value, 1)
    assert torch.equal(result[0], expected[0])
    assert result[1] == expected[1]


@pytest.mark.parametrize("index", [9, -4, "x", slice(None, None, 0)])
@pytest.mark.filterwarnings("ignore:tuple indices must be integers:SyntaxWarning")
def test_s62_wrong_items_of_a_size_stay_errors_of_the_program(index: Any) -> None:
    graph, x, size = sized(())
    viewed = graph.call_method("view", (x, size))
    graph.output((viewed, graph.call_function(operator.getitem, (size, index))))
    value = torch.randn(5, 3, 7)
    errors = []
    for _ in range(2):
        with pytest.raises((IndexError, TypeError, ValueError)) as caught:
            run(graph, value)
        errors.append(caught.type)
        _decompose_size_nodes(GraphModule({}, graph))
    assert errors[0] is errors[1]
    assert not graph.find_nodes(op="call_method", target="size")


def test_s62_users_that_take_a_size_as_one_operand() -> None:
    """Spliced in as torch does it, the dimensions would be too many arguments."""
    graph, x, size = sized((1,))
    row = graph.call_method("select", (x, 0, 0))
    graph.output(
        (
            graph.call_function(torch.broadcast_to, (row, size)),
            graph.call_method("new_full", (x, size, 2.0)),
            graph.call_function(len, (size,)),
            graph.call_function(operator.add, (size, (1,))),
            graph.call_function(torch.zeros, (size,)),
        )
    )
    value = torch.randn(5, 4, 7)
    expected = run(graph, value)
    _decompose_size_nodes(GraphModule({}, graph))
    result = run(graph, value)
    assert all(map(torch.equal, result[:2], expected[:2]))
    assert result[2:4] == expected[2:4]
    assert torch.equal(result[4], expected[4])


def test_s62_size_without_dimensions() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = torch.randn(())
    graph.output(graph.call_method("view", (x, graph.call_method("size", (x,)))))
    _decompose_size_nodes(GraphModule({}, graph))
    value = torch.randn(())
    assert torch.equal(run(graph, value), value)
