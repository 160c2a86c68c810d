"""From which node of the old program a node of the new one was made."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from fxpress._torch import decompose as compat
from fxpress._torch.node_sources import CREATE, REPLACE, source

_MODULE = "ExportedProgram.module()"
_UNLIFT = "ExportedProgram.module().unlift()"


class Sources:
    """Makes the records that torch would make by way of `ep.module()`'s graph, which is not made.

    Args:
        old: the graph of the old program.
        between: an object whose identity stands for that graph's.
    """

    def __init__(self, old: Graph, between: Any) -> None:
        self._old_id = id(old)
        self._between_id = id(between)
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
        self._texts: dict[int, str] = {}  # id of a target -> its text

    def of_module(self, node: Node) -> list[Any]:
        """Return the list that the node has in `ep.module()`'s graph; one for each node."""
        found = self._lists.get(node)
        if found is None:
            found = self._lists[node] = [self._of_old(self._known[node])]
        return found

    def of_trace(self, node: Node) -> Any:
        """Return the record of a new node that comes from a call."""
        return self._of_between(node, compat.INTERPRETER, CREATE)

    def of_unlifted(self, node: Node) -> list[Any]:
        """Return the list of an input that became an attribute, or of the output."""
        return [self._of_between(node, _UNLIFT, CREATE, REPLACE)]

    def _of_old(self, node: Node | None) -> Any:
        if node is None:
            return compat.source(None, _MODULE, [CREATE])
        earlier = node.meta.get("from_node", ())
        return source(node.name, self._text(node), self._old_id, earlier, _MODULE, CREATE)

    def _of_between(self, node: Node, pass_name: str, *actions: Any) -> Any:
        earlier = self.of_module(node)
        name = self._names[node]
        return source(name, self._text(node), self._between_id, earlier, pass_name, *actions)

    def _text(self, node: Node) -> str:
        target = node.target
        if type(target) is str:
            return target
        text = self._texts.get(id(target))
        if text is None:
            text = self._texts[id(target)] = str(target)
        return text
