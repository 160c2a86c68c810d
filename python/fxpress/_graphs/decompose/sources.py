"""From which node of the old program a node of the new one was made."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from fxpress import _native
from fxpress._torch import decompose as compat
from fxpress._torch.unlift import CREATED, REPLACED


class Sources:
    """Makes the records that torch makes through the graph of `ep.module()`, without that graph."""

    def __init__(self, old: Graph, between: Any) -> None:
        self._old_id = id(old)
        self._between_id = id(between)
        self._in_module = _native.Provenance(CREATED)
        self._in_trace = _native.Provenance(compat.TRACED)
        self._unlifted = _native.Provenance(REPLACED)
        namespace = compat.Namespace()
        by_name = {node.name: node for node in old.nodes if node.op != "placeholder"}
        by_target = {node.target: node for node in old.nodes if node.op == "placeholder"}
        self._names: dict[Node, str] = {}
        self._known: dict[Node, Node | None] = {}
        for node in old.nodes:
            name = self._names[node] = namespace.create_name(node.name, None)
            found = by_target.get(node.target) if node.op == "placeholder" else by_name.get(name)
            self._known[node] = found
        self._lists: dict[Node, list[Any]] = {}

    def of_module(self, node: Node) -> list[Any]:
        """Return the list that the node has in `ep.module()`'s graph; one for each node."""
        found = self._lists.get(node)
        if found is None:
            found = self._lists[node] = self._of_old(self._known[node])
        return found

    def of_trace(self, node: Node) -> Any:
        """Return the record of a new node that comes from a call."""
        return self._of_between(self._in_trace, node)[0]

    def of_unlifted(self, node: Node) -> list[Any]:
        """Return the list of an input that became an attribute, or of the output."""
        return self._of_between(self._unlifted, node)

    def _of_old(self, node: Node | None) -> list[Any]:
        if node is None:
            return self._in_module.note_of_none()
        earlier = node.meta.get("from_node")
        return self._in_module.note(node.name, node.target, self._old_id, earlier)

    def _of_between(self, pass_of_torch: _native.Provenance, node: Node) -> list[Any]:
        name = self._names[node]
        return pass_of_torch.note(name, node.target, self._between_id, self.of_module(node))
