"""Prepare two programs to be shown side by side, with their differences marked."""

from __future__ import annotations

from typing import Any

from fxpress._tools.view.comparison import Comparison
from fxpress._tools.view.graphs import Graph
from fxpress._tools.view.matching import Matching
from fxpress._tools.view.overlays import Overlay, difference_of
from fxpress._tools.view.sources import Source

TITLE = "difference"


def differences_of(
    first: Source, second: Source, compared: list[Comparison]
) -> tuple[Overlay, Overlay]:
    """Return for each of two sources the overlay that marks how it differs from the other."""
    overlays: tuple[Overlay, Overlay] = ({}, {})
    for each in compared:
        if each.matching is not None:
            for side, source in enumerate((first, second)):
                graph = source.graphs[each.names[side]][0]
                overlays[side].update(difference_of(graph, each.matching.states[side]))
    return overlays


def mapping_of(compared: list[Comparison]) -> dict[str, Any]:
    """Return which nodes correspond, as a file that Model Explorer's "Sync navigation" takes."""
    pairs: dict[str, str] = {}
    for each in compared:
        pairs |= each.matching.pairs if each.matching is not None else {}
    return {"mapping": pairs, "showDiffHighlights": True, "disableMappingFallback": True}


def align(second: Source, compared: list[Comparison]) -> None:
    """Give the nodes of the second source the ids of their counterparts.

    Model Explorer moves from a node to the node of the other side that has its id: it then needs no
    file that says which nodes correspond.
    """
    for each in compared:
        if each.matching is not None:
            ids = _new_ids(each.matching)
            _rename(second.graphs[each.names[1]][0], ids)
            states = {ids[node]: state for node, state in each.matching.states[1].items()}
            pairs = {mine: mine for mine in each.matching.pairs}
            each.matching = Matching(pairs, (each.matching.states[0], states))


def _new_ids(matching: Matching) -> dict[str, str]:
    """Return the id that each node of the second program gets; no two get one."""
    ids = {theirs: mine for mine, theirs in matching.pairs.items()}
    alone = [node for node in matching.states[1] if node not in ids]
    return ids | {node: f"{node} of the second" for node in alone}


def _rename(graph: Graph, ids: dict[str, str]) -> None:
    for node in graph["nodes"]:
        node["id"] = ids[node["id"]]
        for edge in node["incomingEdges"]:
            edge["sourceNodeId"] = ids[edge["sourceNodeId"]]
        for pair in node["attrs"]:
            if pair["key"] == "users":
                pair["value"]["nodeIds"] = [ids[user] for user in pair["value"]["nodeIds"]]
