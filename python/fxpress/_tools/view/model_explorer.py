"""Write graphs for Model Explorer as plain data, in the form of its JSON files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fxpress import _native
from fxpress._files.archive.files import write_file
from fxpress._tools.view.comparison import TITLE, compare, differences_of, mapping_of
from fxpress._tools.view.graphs import make_old
from fxpress._tools.view.nodes import Graph, Node, TensorFacts
from fxpress._tools.view.overlays import overlays_of
from fxpress._tools.view.sources import Source

_TAG = "__tensor_tag"  # Model Explorer's key for the name of a value
_Pair = dict[str, Any]  # the key and the value of an attribute


def plain_graph(graph: Graph) -> dict[str, Any]:
    """Return a graph as plain data. Do not modify the data: equal parts may be one object."""
    with _native.GcPause():
        writer = _Writer()
        users = _users(graph)
        nodes = [writer.node(node, users.get(node.id)) for node in graph.nodes]
        make_old()
    return {"id": graph.id, "nodes": nodes, "groupNodeAttributes": graph.layers}


def write_graphs(sources: Sequence[Source], target: Path) -> list[Path]:
    """Write the graphs of sources, and files with data over their nodes; return the paths.

    For two sources, the differences and the correspondence of nodes are written too. The graphs of
    several sources get distinct ids. OSError, or InspectionError if a file is damaged.
    """
    for source in sources if len(sources) > 1 else ():
        for graph in source.all_graphs():
            graph.id = f"{source.name}: {graph.id}"
    data: dict[str, dict[str, Any]] = {}
    if len(sources) == 2:
        first, second = sources
        compared = compare(first, second)
        data[TITLE] = {}
        for difference in differences_of(first, second, compared):
            data[TITLE] |= difference
        data["counterparts"] = mapping_of(compared)
    graphs = []
    for source in sources:
        graphs += [plain_graph(graph) for graph in source.all_graphs()]
        for title, overlay in overlays_of(source.graphs).items():
            data.setdefault(title, {}).update(overlay)
    texts = {target: json.dumps({"graphs": graphs})}
    for title, overlay in data.items():
        path = target.with_name(f"{target.stem}.{title.replace(' ', '_')}.json")
        texts[path] = json.dumps(overlay)
    for path, text in texts.items():
        write_file(path, text)
    return list(texts)


def _users(graph: Graph) -> dict[str, list[str]]:
    """Return, for the id of a node, the ids of the nodes that use its values."""
    found: dict[str, list[str]] = {}
    for node in graph.nodes:
        for given in node.arguments:
            users = found.setdefault(given.node.id, [])
            if not users or users[-1] != node.id:
                users.append(node.id)
    return found


class _Writer:
    """Builds a graph's nodes as plain data; data that nodes share is built once."""

    def __init__(self) -> None:
        self._pairs: dict[tuple[str, str], _Pair] = {}
        self._inputs: dict[tuple[int, str], dict[str, Any]] = {}
        self._tensors: dict[TensorFacts | None, list[_Pair]] = {None: []}
        self._numbers: list[str] = []

    def node(self, node: Node, users: list[str] | None) -> dict[str, Any]:
        """Return a node as plain data; `users` are the ids of the nodes that use its values."""
        pairs = (*node.identity(), *node.constants, *node.origin())
        attributes = [self._pair(*pair) for pair in pairs]
        if node.target is None and node.results:
            attributes += self._tensor(node.results[0].tensor)
        if users:
            value = {"type": "node_ids", "nodeIds": users}
            attributes.append({"key": "users", "value": value})
        edges = [
            {
                "sourceNodeId": given.node.id,
                "sourceNodeOutputId": self._number(given.output),
                "targetNodeInputId": self._number(place),
            }
            for place, given in enumerate(node.arguments)
        ]
        outputs = [
            {
                "id": self._number(place),
                "attrs": [{"key": _TAG, "value": value.name}, *self._tensor(value.tensor)],
            }
            for place, value in enumerate(node.results)
        ]
        made = {
            "id": node.id,
            "label": node.label,
            "namespace": node.layer,
            "attrs": attributes,
            "incomingEdges": edges,
            "inputsMetadata": [self._input(i, each.name) for i, each in enumerate(node.arguments)],
            "outputsMetadata": outputs,
        }
        if node.bodies:
            made["subgraphIds"] = [body.id for body in node.bodies]
        return made

    def _pair(self, key: str, value: str) -> _Pair:
        pair = self._pairs.get((key, value))
        if pair is None:
            pair = self._pairs[key, value] = {"key": key, "value": value}
        return pair

    def _tensor(self, tensor: TensorFacts | None) -> list[_Pair]:
        pairs = self._tensors.get(tensor)
        if pairs is None:
            assert tensor is not None
            pairs = [{"key": key, "value": text} for key, text in tensor.shown().items()]
            self._tensors[tensor] = pairs
        return pairs

    def _input(self, place: int, name: str) -> dict[str, Any]:
        known = self._inputs.get((place, name))
        if known is None:
            pairs = [{"key": _TAG, "value": name}]
            known = self._inputs[place, name] = {"id": self._number(place), "attrs": pairs}
        return known

    def _number(self, number: int) -> str:
        while len(self._numbers) <= number:
            self._numbers.append(str(len(self._numbers)))
        return self._numbers[number]
