"""Layers of very many nodes are cut into ranges, which Model Explorer draws."""

from __future__ import annotations

from collections import defaultdict

import pytest

from fxpress._tools.view.nodes import Graph, Node
from fxpress._tools.view.ranges import MOST, cut_long_layers


def graph_of(*layers: str) -> Graph:
    """A graph with a node in each layer, which is named after its module."""
    nodes = [Node(f"node {i}", "", layer, "") for i, layer in enumerate(layers)]
    facts = {layer: {"module": layer.replace("/", ".")} for layer in dict.fromkeys(layers) if layer}
    return Graph("graph", nodes, facts)


def members_of(graph: Graph) -> dict[str, list[str]]:
    """The members of each layer in their order, nodes by their ids."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for node in graph.nodes:
        member, layer = node.id, node.layer
        while True:
            found[layer].setdefault(member)
            if not layer:
                break
            member, layer = layer, layer.rpartition("/")[0]
    return {layer: list(members) for layer, members in found.items()}


def modules_of(graph: Graph) -> list[str]:
    """The module that each node is shown in."""
    return [graph.layers.get(node.layer, {}).get("module", "") for node in graph.nodes]


PROGRAMS = {
    "flat": [""] * (3 * MOST),
    "one module": ["block"] * (3 * MOST),
    "many modules": [f"layers/{i}/{part}" for i in range(MOST + 1) for part in "ab"],
    "both": ["", *(f"layers/{i}" for i in range(2 * MOST)), *["layers/7"] * (MOST + 1)],
    "left and entered again": ["a", "b"] * (MOST + 1),
}


@pytest.mark.parametrize("layers", PROGRAMS.values(), ids=PROGRAMS)
def test_no_layer_is_long(layers: list[str]) -> None:
    graph = graph_of(*layers)
    modules = modules_of(graph)
    assert max(map(len, members_of(graph).values())) > MOST
    cut_long_layers(graph)
    found = members_of(graph)
    assert max(map(len, found.values())) <= MOST
    assert modules_of(graph) == modules
    assert [node.id for node in graph.nodes] == [f"node {i}" for i in range(len(layers))]


def test_ranges_say_what_is_in_them() -> None:
    graph = graph_of(*[""] * (MOST + 1))
    cut_long_layers(graph)
    found = members_of(graph)
    assert found[""] == ["1 to 250", "251 to 500", "501 to 750", "751 to 1,000", "1,001 to 1,001"]
    assert found["251 to 500"] == [f"node {i}" for i in range(250, 500)]


def test_short_layers_stay() -> None:
    layers = [f"layers/{i}/{part}" for i in range(MOST) for part in "abc"]
    graph = graph_of(*layers)
    cut_long_layers(graph)
    assert [node.layer for node in graph.nodes] == layers
    assert graph.layers == graph_of(*layers).layers


def test_layers_without_nodes_keep_their_facts() -> None:
    graph = graph_of(*["block"] * (MOST + 1))
    graph.layers[""] = {"module calls": "1"}
    graph.layers["other"] = {"module": "other"}
    cut_long_layers(graph)
    assert graph.layers[""] == {"module calls": "1"}
    assert graph.layers["other"] == {"module": "other"}
    assert graph.layers["block"] == {"module": "block"}


def test_ranges_grow_with_the_layer() -> None:
    graph = graph_of(*[""] * (MOST * 250 + 1))
    cut_long_layers(graph)
    found = members_of(graph)
    assert len(found[""]) <= MOST
    assert len(found["1 to 251"]) == 251
