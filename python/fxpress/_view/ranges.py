"""Cut layers with very many members into ranges, which are layers of their own.

Model Explorer lays out all members of a layer at once, and cuts a layer of more than a thousand
itself: by a walk that recurses along the edges and overflows its stack in a long chain, after which
it connects the whole graph a second time.
"""

from __future__ import annotations

from typing import Any

MOST = 1000  # members of a layer, as many as Model Explorer leaves together
_RANGE = 250  # members of a range


def cut_long_layers(graph: dict[str, Any]) -> None:
    """Give the nodes of a graph namespaces in which no layer has more than `MOST` members.

    A range has the attribute "module" of its layer. Of layers with more than `MOST * MOST` members
    the ranges are longer than that.

    Args:
        graph: a graph of Model Explorer; nodes and attributes of layers are changed.
    """
    layers = _Layers()
    numbers = [layers.add(node["namespace"]) for node in graph["nodes"]]
    if layers.largest() <= MOST:
        return
    names = layers.names()
    attributes = {names.get(old, old): facts for old, facts in graph["groupNodeAttributes"].items()}
    for node, number in zip(graph["nodes"], numbers, strict=True):
        layer = node["namespace"]
        name = names[layer]
        if inside := layers.range_of(layer, number):
            module = attributes.get(name, {}).get("module")
            name = _within(name, inside)
            if module:
                attributes.setdefault(name, {"module": module})
        node["namespace"] = name
    graph["groupNodeAttributes"] = attributes


class _Layers:
    """The layers of a graph, which number their members in the order in which these come."""

    def __init__(self) -> None:
        self._counts = {"": 0}  # layer -> its members
        self._numbers: dict[str, int] = {}  # layer -> its number in the layer around it

    def add(self, layer: str) -> int:
        """Return the number of another node of a layer."""
        if layer not in self._counts:
            ends = [i for i, char in enumerate(layer) if char == "/"]
            for end in [*ends, len(layer)]:
                each = layer[:end]
                if each not in self._counts:
                    self._counts[each] = 0
                    self._numbers[each] = self.add(each.rpartition("/")[0])
        number = self._counts[layer]
        self._counts[layer] = number + 1
        return number

    def largest(self) -> int:
        """Return the members of the layer that has the most."""
        return max(self._counts.values())

    def range_of(self, layer: str, number: int) -> str:
        """Return the range that a member of a layer is in; empty where the layer is not cut."""
        count = self._counts[layer]
        if count <= MOST:
            return ""
        size = max(_RANGE, -(-count // MOST))
        first = number // size * size
        return f"{first + 1:,} to {min(first + size, count):,}"

    def names(self) -> dict[str, str]:
        """Return the new name of each layer."""
        names = {"": ""}
        for layer, number in self._numbers.items():  # a layer comes after that around it
            around, _, own = layer.rpartition("/")
            names[layer] = _within(names[around], self.range_of(around, number), own)
        return names


def _within(*parts: str) -> str:
    return "/".join(part for part in parts if part)
