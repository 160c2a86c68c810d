"""Edits of a graph by the user's code while fxpress works on it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.fx import Graph, Node

from tests.support.hostile import Struck


def calls(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op.startswith("call")]


def placeholder_to_call(graph: Graph) -> None:
    first = next(iter(graph.nodes))
    first.op, first.target = "call_function", torch.neg


def call_to_placeholder(graph: Graph) -> None:
    calls(graph)[-1].op = "placeholder"


def many_arguments(graph: Graph) -> None:
    for node in calls(graph):
        node.args = node.args * 50


def no_arguments(graph: Graph) -> None:
    for node in calls(graph):
        node.args = ()


def arguments_in_a_list(graph: Graph) -> None:
    for node in graph.nodes:
        node.args = list(node.args)


def other_inputs(graph: Graph) -> None:
    last = calls(graph)[-1]
    for node in calls(graph)[:-1]:
        node.args = (last,)


def more_results(graph: Graph) -> None:
    output = graph.output_node()
    output.args = ((output.args[0],) * 50,)


def no_results(graph: Graph) -> None:
    graph.output_node().args = ()


def insert(graph: Graph) -> None:
    with graph.inserting_before(calls(graph)[0]):
        graph.call_function(torch.neg, (next(iter(graph.nodes)),))


def erase_all(graph: Graph) -> None:
    for node in reversed(list(graph.nodes)):
        graph.erase_node(node)


def other_constants(graph: Graph) -> None:
    for node in calls(graph):
        node.kwargs = {**node.kwargs, "alpha": 3}


def other_names(graph: Graph) -> None:
    for node in graph.nodes:
        node.name += "_renamed"


def move(graph: Graph) -> None:
    """Move the first call to the end: a walk that has passed the call comes to it again."""
    first, *_, last = calls(graph)
    last.append(first)


def ring_without_root(graph: Graph) -> None:
    first, *_, last = calls(graph)
    last._next = first


def node_before_itself(graph: Graph) -> None:
    node = calls(graph)[-1]
    node._next = node


def into_another_graph(graph: Graph) -> None:
    other = Graph()
    others.append(other)
    calls(graph)[0]._next = other.call_function(torch.neg, (other.placeholder("x"),))


others: list[Graph] = []  # keeps graphs alive if their nodes are linked into other graphs


def no_tables(graph: Graph) -> None:
    for node in graph.nodes:
        node.users = node._input_nodes = node.meta = None


def strike(graph: Graph) -> None:
    raise Struck


def interrupt(graph: Graph) -> None:
    raise KeyboardInterrupt


BROKEN_RINGS = [ring_without_root, node_before_itself, into_another_graph]

EDITS: list[Callable[[Graph], None]] = [
    placeholder_to_call,
    call_to_placeholder,
    many_arguments,
    no_arguments,
    arguments_in_a_list,
    other_inputs,
    more_results,
    no_results,
    insert,
    erase_all,
    other_constants,
    other_names,
    move,
    ring_without_root,
    node_before_itself,
    into_another_graph,
    no_tables,
    strike,
]
