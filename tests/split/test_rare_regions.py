"""Regions, ids and nodes that no tracer makes: the result or the exception of torch's split."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.split_module import split_module as torch_split

from fxpress.split_module import split_module
from tests.support.graphs import chain
from tests.support.split_cases import assert_split_as_torch, clean, outcome

AUTOCAST = ("cpu", torch.bfloat16, True, True)


def with_region(kind: str, *, mode: Callable[[Node], Any] = lambda node: True) -> GraphModule:
    """relu -> a region with neg; `mode` gives an argument of the switch from the node before it."""
    graph = Graph()
    x = graph.placeholder("x")
    value = graph.call_function(torch.relu, (x,))
    if kind == "grad":
        graph.call_function(torch._C._set_grad_enabled, (mode(value),))
    else:
        arguments = (*AUTOCAST[:2], mode(value), True)
        enter = graph.call_function(torch.amp._enter_autocast, arguments)
    value = graph.call_function(torch.neg, (value,))
    if kind == "autocast":
        graph.call_function(torch.amp._exit_autocast, (enter,))
    graph.output(value)
    return GraphModule({}, graph)


def assert_both_refuse(
    module: GraphModule, callback: Callable[[], Callable[[Node], Any]], kind: type[Exception]
) -> None:
    """`callback` creates the callback of each split, which may count its calls."""
    for split in (torch_split, split_module):
        clean(module.graph)
        assert outcome(lambda: split(module, None, callback())) is kind  # noqa: B023
    assert not any(node.__dict__ for node in module.graph.nodes)


@pytest.mark.parametrize("kind", ["grad", "autocast"])
def test_a_mode_that_is_a_node(kind: str) -> None:
    module = with_region(kind, mode=lambda node: node)
    assert_both_refuse(module, lambda: lambda node: 0, AssertionError)


@pytest.mark.parametrize("kind", ["grad", "autocast"])
def test_ids_without_a_hash(kind: str) -> None:
    assert_both_refuse(with_region(kind), lambda: lambda node: [1], TypeError)


def test_ids_without_a_hash_outside_of_regions() -> None:
    assert_split_as_torch(chain(3), lambda node: [1])


def changing(names: tuple[str, ...], first: int, later: int) -> Callable[[], Callable[[Node], int]]:
    """Answers `first` and then `later` for nodes whose name starts with one of `names`, else 0."""

    def make() -> Callable[[Node], int]:
        asked: Counter[Node] = Counter()

        def callback(node: Node) -> int:
            if not node.name.startswith(names):
                return 0
            asked[node] += 1
            return first if asked[node] == 1 else later

        return callback

    return make


@pytest.mark.parametrize("kind", ["grad", "autocast"])
def test_another_id_when_asked_again(kind: str) -> None:
    assert_both_refuse(with_region(kind), changing(("neg", "_exit"), 0, 7), KeyError)


def test_an_exit_that_was_first_said_to_be_in_a_partition_without_the_region() -> None:
    assert_both_refuse(with_region("autocast"), changing(("_exit",), 1, 0), KeyError)


def test_a_callback_that_takes_marks_away() -> None:
    """After an error, `_fx_partition` that the callback deleted stays deleted, and no new one is
    left."""
    module = chain(4)
    first, second, *_ = module.graph.find_nodes(op="call_function", target=torch.neg)
    second._fx_partition = "earlier"

    def callback(node: Node) -> int:
        if node.name == "neg_3":
            del first._fx_partition
            second._fx_partition = "mine"
            raise ZeroDivisionError(node.name)
        return 0

    with pytest.raises(ZeroDivisionError, match="neg_3"):
        split_module(module, None, callback)
    assert [node.__dict__ for node in module.graph.nodes if node.__dict__] == [
        {"_fx_partition": "earlier"}
    ]


@pytest.mark.parametrize("target", [5, None, torch.relu], ids=["int", "none", "function"])
def test_a_target_of_an_attribute_that_is_no_str(target: Any) -> None:
    root = torch.nn.Module()
    root.register_buffer("shift", torch.ones(2))
    graph = Graph()
    x, shift = graph.placeholder("x"), graph.get_attr("shift")
    graph.output(graph.call_function(torch.add, (x, shift)))
    module = GraphModule(root, graph)
    shift.target = target
    assert_both_refuse(module, lambda: lambda node: 0, AssertionError)


class Noted(Node):
    """A node of a subclass."""


@pytest.mark.parametrize("places", [(0, 0), (0, 1)])
def test_nodes_of_a_subclass(places: tuple[int, int]) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    noted = Noted(graph, "noted", "call_function", torch.neg, (x,), {})
    graph._insert(noted)
    graph.output((noted, graph.call_function(torch.cat, ([noted, {"x": (x, noted)}],))))
    module = GraphModule({}, graph)
    split = assert_split_as_torch(module, lambda node: places[node is not noted])
    assert split is not None
    kinds = {type(node) for child in split.children() for node in child.graph.nodes}
    assert kinds == {Node}


def test_a_graph_that_says_it_is_shorter_than_nothing() -> None:
    module = chain(3)
    module.graph._len = -1
    assert_split_as_torch(module, lambda node: 0)
