"""Bad input: torch's exception type, a message with the node, the input unchanged."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.split_module import split_module as torch_split_module

from fxpress import _native
from fxpress.split_module import split_module, split_module_simple
from tests.support.graphs import chain, mlp, region_graph


def snapshot(graph: Graph) -> list[Any]:
    return [
        (n, n.name, n.target, n.args, n.kwargs, dict(n.meta), dict(n.__dict__), list(n.users))
        for n in graph.nodes
    ]


def assert_refused(
    module: Any, callback: Callable[[Node], Any], error: type[Exception], match: str, **options: Any
) -> None:
    before = snapshot(module.graph)
    names = {"old": "kept"}
    enabled = gc.isenabled()
    with pytest.raises(error, match=match):
        split_module(module, None, callback, names, **options)
    assert snapshot(module.graph) == before
    assert names == {"old": "kept"}
    assert gc.isenabled() == enabled
    assert _native.gc_pauses() == 0


def test_cycle_between_partitions() -> None:
    module = chain(3)
    a, b, c = module.graph.find_nodes(op="call_function", target=torch.neg)
    assert_refused(
        module,
        {a: 0, b: 1, c: 0}.__getitem__,
        RuntimeError,
        r"cycle exists between partitions! \((0 -> 1 -> 0|1 -> 0 -> 1), where",
    )


def test_error_in_the_callback_passes_through() -> None:
    class Oops(Exception):
        pass

    def callback(node: Node) -> int:
        if node.name == "neg_2":
            raise Oops(node.name)
        return 0

    assert_refused(chain(4), callback, Oops, "neg_2")


def test_earlier_marks_are_restored_after_an_error() -> None:
    module = chain(3)
    split_module(module, None, lambda n: "old")
    assert_refused(module, lambda n: 1 / (n.name != "neg_2"), ZeroDivisionError, "division")
    assert {n._fx_partition for n in module.graph.nodes if n.op == "call_function"} == {"old"}


@pytest.mark.parametrize("ids", [None, object(), "a b", 1.5, (1, 2)])
def test_any_id_with_a_str_works_without_regions(ids: Any) -> None:
    module = chain(2)
    split = split_module(module, None, lambda n: ids)
    assert split.meta["partition_names"] == {f"submod_{ids}"}


def test_ids_that_cannot_be_ordered_with_regions() -> None:
    module, ids = region_graph()
    assert_refused(module, lambda n: [None, "a", 1][ids[n] % 3], TypeError, "not supported")


def test_falling_ids_with_regions() -> None:
    module, ids = region_graph()
    assert_refused(module, lambda n: 9 - ids[n], AssertionError, "monotonically increasing.*node")


def test_autocast_that_never_ends() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    enter = graph.call_function(torch.amp._enter_autocast, ("cpu", torch.bfloat16, True, True))
    graph.output(graph.call_function(torch.relu, (x,)))
    module = GraphModule({}, graph)
    assert_refused(module, lambda n: 0, AssertionError, f"autocast must exit.*{enter.name}")


def test_exit_without_enter() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(torch.amp._exit_autocast, (x,))
    graph.output(x)
    assert_refused(GraphModule({}, graph), lambda n: 0, KeyError, "not the node of an open")


@pytest.mark.parametrize("args", [(), (1,), (True, False)])
def test_malformed_grad_switch(args: tuple[Any, ...]) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.call_function(torch._C._set_grad_enabled, args)
    graph.output(x)
    assert_refused(GraphModule({}, graph), lambda n: 0, AssertionError, "_set_grad_enabled|bool")


@pytest.mark.parametrize("op", ["call_module", "get_attr"])
def test_missing_target(op: str) -> None:
    module = mlp()
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.create_node(op, "not.there")
    assert_refused(module, lambda n: 0, AttributeError, "Node target not.there not found!")


def test_not_a_graph_module() -> None:
    with pytest.raises(AttributeError, match="graph"):
        split_module(torch.nn.Linear(1, 1), None, lambda n: 0)  # type: ignore[arg-type]


def test_argument_that_was_erased() -> None:
    module = chain(3)
    a, b, _ = module.graph.find_nodes(op="call_function", target=torch.neg)
    a._remove_from_list()
    a._erased = True
    assert_refused(module, lambda n: 0, KeyError, f"{b.name}.*{a.name}")


def test_argument_of_another_graph() -> None:
    module, other = chain(2), chain(2)
    node = module.graph.find_nodes(op="call_function", target=torch.neg)[0]
    node.args = (next(iter(other.graph.nodes)),)
    assert_refused(module, lambda n: 0, KeyError, "not in the graph")


def test_use_before_definition() -> None:
    module = chain(3)
    a, _, c = module.graph.find_nodes(op="call_function", target=torch.neg)
    c.append(a)
    assert_refused(module, lambda n: 0, KeyError, "before it is defined")


def test_callback_that_makes_a_call_of_an_attribute() -> None:
    root = torch.nn.Module()
    root.linear = torch.nn.Linear(4, 4)
    graph = Graph()
    x, attribute = graph.placeholder("x"), graph.get_attr("linear")
    graph.output((graph.call_function(torch.relu, (x,)), attribute))

    def callback(node: Node) -> int:
        attribute.op = "call_module"
        return 0

    with pytest.raises(RuntimeError, match="was modified"):
        split_module(GraphModule(root, graph), None, callback)


def test_arguments_of_a_mode_in_a_list() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    arguments = ("cpu", torch.bfloat16, True, True)
    enter = graph.call_function(torch.amp._enter_autocast, arguments)
    result = graph.call_function(torch.relu, (x,))
    graph.call_function(torch.amp._exit_autocast, (enter,))
    graph.output(result)
    module = GraphModule({}, graph)
    enter.args = list(arguments)
    x.args = []
    with pytest.raises(AssertionError):
        torch_split_module(module, None, lambda node: 0)
    assert_refused(module, lambda n: 0, AssertionError, "_enter_autocast: expected a tuple")


def test_callback_that_edits_the_graph() -> None:
    module = chain(3)

    def callback(node: Node) -> int:
        with module.graph.inserting_before(node):
            module.graph.call_function(torch.neg, (node.args[0],))
        return 0

    with pytest.raises(RuntimeError, match="was modified"):
        split_module(module, None, callback)


def test_original_order_that_cannot_run() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.relu, (x,))
    b = graph.call_function(torch.neg, (x,))
    c = graph.call_function(torch.add, (a, b))
    graph.output(c)
    module = GraphModule({}, graph)
    ids = {a: 0, b: 1, c: 0}
    assert_refused(module, ids.__getitem__, KeyError, "appears before", keep_original_order=True)


def test_interrupt_from_the_callback() -> None:
    def callback(node: Node) -> int:
        raise KeyboardInterrupt

    module = chain(2)
    with pytest.raises(KeyboardInterrupt):
        split_module(module, None, callback)
    assert not any(n.__dict__ for n in module.graph.nodes)


def test_a_meta_whose_copy_fails() -> None:
    class Meta(dict):  # type: ignore[type-arg]
        def copy(self) -> Any:
            raise ValueError("no copies")

    module = chain(2)
    next(iter(module.graph.nodes)).meta = Meta()
    assert_refused(module, lambda n: 0, ValueError, "no copies")


def test_output_without_arguments() -> None:
    module = chain(3)
    module.graph.output_node().args = ()
    assert_refused(module, lambda n: 0, IndexError, "output")


def test_output_without_arguments_in_the_simple_split() -> None:
    module = chain(3)
    ids = dict.fromkeys(module.graph.find_nodes(op="call_function", target=torch.neg), 0)
    module.graph.output_node().args = ()
    before = snapshot(module.graph)
    with pytest.raises(IndexError, match="output"):
        split_module_simple(module, ids)
    assert snapshot(module.graph) == before


def test_partition_that_needs_a_later_one_in_the_simple_split() -> None:
    """The error comes up in the last of its steps: no mark stays, earlier ones come back."""
    graph = Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.relu, (x,))
    b = graph.call_function(torch.neg, (a,))
    c = graph.call_function(torch.add, (a, b))
    graph.output(c)
    module = GraphModule({}, graph)
    a._fx_partition = "earlier"
    before = snapshot(graph)
    with pytest.raises(KeyError):
        split_module_simple(module, {a: 0, b: 1, c: 0})
    assert snapshot(graph) == before


@pytest.mark.parametrize(
    ("keep_original_order", "reason"), [(False, "switches of grad mode"), (True, "_order=True")]
)
def test_why_partitions_must_be_able_to_run_in_graph_order(
    keep_original_order: bool, reason: str
) -> None:
    graph = Graph()
    x = graph.placeholder("x")
    a = graph.call_function(torch.relu, (x,))
    switch = graph.call_function(torch._C._set_grad_enabled, (False,))
    b = graph.call_function(torch.neg, (x,))
    graph.output((a, b))
    a.args = (b,)
    module = GraphModule({}, graph)
    ids = {a: 0, switch: 1, b: 1}
    assert_refused(
        module,
        ids.__getitem__,
        KeyError,
        f"appears before.*{reason}",
        keep_original_order=keep_original_order,
    )
