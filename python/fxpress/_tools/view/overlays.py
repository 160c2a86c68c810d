"""Build Model Explorer's overlays over a graph's nodes: bytes, FLOPs, kinds, partitions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fxpress._tools.view.flops import count_flops
from fxpress._tools.view.kinds import COLORS, kind_of, partition_of
from fxpress._tools.view.matching import ALONE, CHANGED, FOLLOWS, SAME
from fxpress._tools.view.nodes import Graph, Node

Overlay = dict[str, Any]  # a graph's id -> the value of each node
_GRADIENT = [{"stop": 0, "bgColor": "#ffffff"}, {"stop": 1, "bgColor": "#e8710a"}]
_PARTITIONS = (  # colors of partitions, used cyclically
    *("#8dd3c7", "#ffffb3", "#bebada", "#fb8072", "#80b1d3", "#fdb462", "#b3de69", "#fccde5"),
    *("#d9d9d9", "#bc80bd", "#ccebc5", "#ffed6f"),
)
_STATES = {SAME: "#ffffff", CHANGED: "#f46d43", FOLLOWS: "#fee08b", ALONE: "#d53e4f"}
_Values = dict[str, dict[str, Any]]  # id of a node -> value, color


def overlays_of(graphs: dict[str, list[Graph]]) -> dict[str, Overlay]:
    """Return name -> overlay of programs.

    Nodes whose sizes are symbols have no bytes. There is an overlay of partitions only if modules
    have the names that `split_module` gives to partitions.
    """
    everything = [graph for of_program in graphs.values() for graph in of_program]
    counts = [count_flops(of_program).by_node for of_program in graphs.values()]
    found = {
        "bytes of state": _numbers(everything, lambda n: n.result_bytes() if n.state else None),
        "bytes of results": _numbers(everything, lambda n: None if n.state else n.result_bytes()),
        "FLOPs": {
            graph_id: shaded(numbers) for count in counts for graph_id, numbers in count.items()
        },
        "kind of operator": {g.id: {"results": _kinds(g)} for g in everything},
    }
    partitions = {g.id: {"results": _partitions(g)} for g in everything}
    if any(each["results"] for each in partitions.values()):
        found["partition"] = partitions
    return found


def difference_of(graph: Graph, states: dict[str, str]) -> Overlay:
    """Return an overlay that colors nodes by their states, such as "same" or "changed"."""
    results = {node: {"value": state, "bgColor": _STATES[state]} for node, state in states.items()}
    return {graph.id: {"results": results}}


def marked(graph: Graph, texts: dict[str, str]) -> Overlay:
    """Return an overlay with texts on nodes; `texts` maps the id of a node to its text."""
    return {graph.id: {"results": {node: {"value": text} for node, text in texts.items()}}}


def by_module(graph: Graph, texts: dict[str, str]) -> Overlay:
    """Return an overlay: an operator gets the text of the innermost module around it in `texts`."""
    known: dict[str, str | None] = {}
    found: dict[str, str] = {}
    for node in graph.nodes:
        if node.target is None:
            continue
        path = node.module
        if path not in known:
            around = path
            while around and around not in texts:
                around = around.rpartition(".")[0]
            known[path] = texts.get(around)
        text = known[path]
        if text is not None:
            found[node.id] = text
    return marked(graph, found)


def shaded(numbers: Mapping[str, float]) -> dict[str, Any]:
    """Return a graph's entry in an overlay. The largest number has the darkest color."""
    results = {node: {"value": number} for node, number in numbers.items()}
    return {"results": results, "gradient": _GRADIENT}


def _numbers(graphs: list[Graph], rule: Callable[[Node], int | None]) -> Overlay:
    found = {}
    for graph in graphs:
        values = ((node.id, rule(node)) for node in graph.nodes)
        found[graph.id] = shaded({node: value for node, value in values if value is not None})
    return found


def _kinds(graph: Graph) -> _Values:
    kinds = ((node.id, kind_of(node)) for node in graph.nodes)
    return {node: {"value": kind, "bgColor": COLORS[kind]} for node, kind in kinds if kind}


def _partitions(graph: Graph) -> _Values:
    found: _Values = {}
    for node in graph.nodes:
        number = partition_of(node.module)
        if number is not None:
            color = _PARTITIONS[number % len(_PARTITIONS)]
            found[node.id] = {"value": number, "bgColor": color}
    return found
