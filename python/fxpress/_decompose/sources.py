"""From which node of the old program a node of the new one was made."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from fxpress._torch import decompose as compat

_MODULE = "ExportedProgram.module()"
_UNLIFT = "ExportedProgram.module().unlift()"


class Sources:
    """Makes the records that torch would make by way of `ep.module()`'s graph, which is not made.

    Args:
        old: the graph of the old program.
        between: an object whose identity stands for that graph's.
    """

    def __init__(self, old: Graph, between: Any) -> None:
        self._between = between
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
            record = compat.source(self._known[node], _MODULE, [compat.CREATE])
            found = self._lists[node] = [record]
        return found

    def _between_node(self, node: Node) -> compat.Traced:
        meta = {"from_node": self.of_module(node)}
        return compat.Traced(self._names[node], node.target, self._between, meta)

    def of_trace(self, node: Node) -> Any:
        """Return the record of a new node that comes from a call."""
        return compat.source(self._between_node(node), compat.INTERPRETER, [compat.CREATE])

    def of_unlifted(self, node: Node) -> list[Any]:
        """Return the list of an input that became an attribute, or of the output."""
        return [compat.source(self._between_node(node), _UNLIFT, [compat.CREATE, compat.REPLACE])]
