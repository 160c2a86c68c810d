"""Compare the programs of two sources, node by node."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from fxpress._base.errors import Error
from fxpress._tools.view.kinds import kind_of
from fxpress._tools.view.matching import ALONE, CHANGED, Matching, comparable, match
from fxpress._tools.view.nodes import Graph, Node
from fxpress._tools.view.overlays import Overlay, difference_of
from fxpress._tools.view.sources import Source

# Keys of the result of `comparable` whose values contain sizes.
_SIZES = frozenset(("size", "sizes", "shape", "strides", "bytes"))
TITLE = "difference"  # the name of the overlay that marks differences


@dataclasses.dataclass
class Comparison:
    """The comparison of two programs, one from each source."""

    names: tuple[str, str]  # the names of the program in the first and in the second source
    is_same: bool | None  # whether the two programs compute the same; None: unknown
    reason: str = ""  # the reason if `is_same` is None
    matching: Matching | None = None  # which nodes correspond; None: unknown


@dataclasses.dataclass
class Difference:
    """A node that differs, or that only one program has."""

    module: str  # the path of its module
    first: Node | None  # the node in the first program; None if only the second has it
    second: Node | None
    what: list[str]  # texts such as "target: aten.relu.default → aten.gelu.default"
    is_of_sizes: bool  # whether only sizes differ, or the node computes or checks sizes


def compare(first: Source, second: Source) -> list[Comparison]:
    """Compare programs with equal names in two sources; OSError for an unreadable file."""
    names, others = list(first.graphs), list(second.graphs)
    pairs = [(name, name) for name in names if name in others]
    if len(names) == 1 and len(others) == 1:
        pairs = [(names[0], others[0])]
    try:
        hashes = first.hashes(), second.hashes()
    except Error as error:
        return [Comparison(pair, None, str(error)) for pair in pairs]
    found = []
    for name, other in pairs:
        (mine, my_nodes), (theirs, their_nodes) = hashes[0][name], hashes[1][other]
        matching = match(first.graphs[name][0], second.graphs[other][0], (my_nodes, their_nodes))
        found.append(Comparison((name, other), mine == theirs, "", matching))
    return found


def differences(first: Graph, second: Graph, matching: Matching) -> Iterator[Difference]:
    """Yield the nodes that differ, except nodes that differ only in their inputs."""
    nodes = {node.id: node for node in second.nodes}
    for node in first.nodes:
        state = matching.states[0][node.id]
        if state == ALONE:
            yield Difference(node.module, node, None, [], _is_size(node))
        elif state == CHANGED:
            other = nodes[matching.pairs[node.id]]
            is_of_sizes = _without_sizes(node, other) == _without_sizes(other, node)
            yield Difference(node.module, node, other, _what(node, other), is_of_sizes)
    for node in second.nodes:
        if matching.states[1][node.id] == ALONE:
            yield Difference(node.module, None, node, [], _is_size(node))


def differences_of(
    first: Source, second: Source, compared: list[Comparison]
) -> tuple[Overlay, Overlay]:
    """Return, for each of two sources, the overlay that marks its differences from the other."""
    overlays: tuple[Overlay, Overlay] = ({}, {})
    for each in compared:
        if each.matching is not None:
            for side, source in enumerate((first, second)):
                graph = source.graphs[each.names[side]][0]
                overlays[side].update(difference_of(graph, each.matching.states[side]))
    return overlays


def mapping_of(compared: list[Comparison]) -> dict[str, Any]:
    """Return which nodes correspond, as JSON for Model Explorer's "Sync navigation"."""
    pairs: dict[str, str] = {}
    for each in compared:
        pairs |= each.matching.pairs if each.matching is not None else {}
    return {"mapping": pairs, "showDiffHighlights": True, "disableMappingFallback": True}


def _what(node: Node, other: Node) -> list[str]:
    mine, theirs = comparable(node), comparable(other)
    keys = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
    if not keys:
        return ["other inputs, or another order of writes, random numbers, effects or modes"]
    return [f"{key}: {mine.get(key) or 'none'} \u2192 {theirs.get(key) or 'none'}" for key in keys]


def _without_sizes(node: Node, other: Node) -> dict[str, str]:
    """Return the properties of `node` except sizes, for a comparison with `other`."""
    sizes = {each.name for n in (node, other) for each in n.arguments if not each.value.tensor}
    facts = comparable(node)
    for number, value in enumerate(node.results):
        tensor = value.tensor and value.tensor.tensor
        facts[f"result {number}"] = f"{tensor.dtype} {len(tensor.shape)}" if tensor else ""
    facts["arguments"] = ", ".join(e.name for e in node.arguments if e.name not in sizes)
    return {k: v for k, v in facts.items() if v and k not in sizes and k not in _SIZES}


def _is_size(node: Node) -> bool:
    """Return whether a node computes or checks sizes."""
    is_number = bool(node.results) and not any(value.tensor for value in node.results)
    return node.target is not None and (is_number or kind_of(node) == "size or check")
