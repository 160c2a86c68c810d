"""What of a call stands where something of a recorded call stands."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._graphs.tracking.reuse.recording import Call
from fxpress._torch.reuse import map_source


class Correspondence:
    """Sources, nodes, names and places of a call, by those of a recorded call."""

    def __init__(self, old: Call, new: Call) -> None:
        self._sites = old.site, new.site
        self._is_same_place = old.site.is_same(new.site)
        self.sources: dict[Any, Any] = {old.path: new.path, old.source: new.source}
        if hasattr(old.source, "base"):
            self.sources[old.source.base] = new.source.base
        self.nodes: dict[torch.fx.Node, torch.fx.Node] = {}
        self._names: dict[str, str] = {}

    def source(self, old: Any) -> Any:
        """Return where the call finds what the recorded one found at a source."""
        return map_source(old, self.sources)

    def node(self, old: torch.fx.Node) -> torch.fx.Node:
        """Return the node in place of another one; a node of neither call stands for itself."""
        return self.nodes.get(old, old)

    def add_node(self, old: torch.fx.Node, new: torch.fx.Node) -> None:
        """Note that a node stands in place of another one, both with the names they were made with.

        A node that is new has no meta yet, and its name.
        """
        self.nodes[old] = new
        self._names[_made_name(old)] = _made_name(new)

    def functions(self, stack: Any) -> list[tuple[str, Any]]:
        """Return the stack of functions in place of another one."""
        return [(self._names.get(name, name), kind) for name, kind in stack]

    def trace(self, text: str) -> str:
        """Return the stack trace in place of another one: it begins at the place of the call."""
        if self._is_same_place:
            return text
        old, new = self._sites
        return new.text() + text.removeprefix(old.text())


def _made_name(node: torch.fx.Node) -> str:
    stack = node.meta.get("source_fn_stack")
    return str(stack[-1][0]) if stack else node.name
