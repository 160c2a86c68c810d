"""Cut layers (groups of nodes) with very many members into ranges, which are inner layers.

Model Explorer lays out all members (nodes and inner layers) of a layer at once. It cuts a layer of
more than a thousand members itself, by a recursive walk along the edges. In a long chain of nodes,
the walk overflows the stack, and Model Explorer then connects the entire graph a second time.
"""

from __future__ import annotations

from collections import Counter

from fxpress._tools.view.nodes import Graph

MOST = 1000  # the maximum number of members of a layer that Model Explorer does not cut
_RANGE = 250  # members of a range, or more if a layer would have more than MOST ranges


def cut_long_layers(graph: Graph) -> None:
    """Change the layers of a graph so that none has more than `MOST` members.

    A range has the attribute "module" of its layer. In layers with more than `MOST * MOST` members,
    ranges have more than `MOST` members.
    """
    counts = _members(Counter([node.layer for node in graph.nodes]))
    if max(counts.values()) <= MOST:
        return
    layers = _Layers(counts)
    cut: dict[str, str] = {}  # range -> its layer
    for node in graph.nodes:
        layer = node.layer
        name = layers[layer]
        if layer in layers.long:
            around, name = name, _within(name, layers.long[layer].take())
            cut.setdefault(name, around)
        node.layer = name
    attributes = {layers.get(layer, layer): facts for layer, facts in graph.layers.items()}
    for name, around in cut.items():
        if module := attributes.get(around, {}).get("module"):
            attributes.setdefault(name, {"module": module})
    graph.layers = attributes


def _members(counts: Counter[str]) -> dict[str, int]:
    """Return how many nodes and inner layers each layer has; `counts` has the numbers of nodes."""
    members = {"": 0, **counts}
    for layer in counts:
        inner = layer
        while inner:
            around = inner.rpartition("/")[0]
            if around in members:
                members[around] += 1
                break
            members[around] = 1
            inner = around
    return members


class _Long:
    """A layer that is cut: `take` assigns its members to ranges in order."""

    def __init__(self, count: int) -> None:
        self._count, self._taken, self._range = count, 0, ""
        self._size = max(_RANGE, -(-count // MOST))

    def take(self) -> str:
        """Return the range of the next member."""
        if self._taken % self._size == 0:
            last = min(self._taken + self._size, self._count)
            self._range = f"{self._taken + 1:,} to {last:,}"
        self._taken += 1
        return self._range


class _Layers(dict[str, str]):
    """Maps a layer of a graph to its new name; the caller looks up nodes' layers in graph order.

    `counts` has the number of members of each layer; `long` has the layers that are cut.
    """

    def __init__(self, counts: dict[str, int]) -> None:
        super().__init__({"": ""})
        self.long = {layer: _Long(count) for layer, count in counts.items() if count > MOST}

    def __missing__(self, layer: str) -> str:
        """Name a layer and its unnamed parents; each becomes the next member of its parent."""
        missing = []
        while layer not in self:
            missing.append(layer)
            layer = layer.rpartition("/")[0]
        for each in reversed(missing):
            around, _, own = each.rpartition("/")
            inside = self.long[around].take() if around in self.long else ""
            self[each] = _within(self[around], inside, own)
        return self[missing[0]]


def _within(*parts: str) -> str:
    return "/".join(part for part in parts if part)
