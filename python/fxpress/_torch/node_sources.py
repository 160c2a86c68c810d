"""torch's records of where nodes come from, made without its constructor: there are thousands."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

from torch.fx import Graph
from torch.fx.traceback import NodeSource, NodeSourceAction

CREATE, REPLACE = NodeSourceAction.CREATE, NodeSourceAction.REPLACE


def source(
    name: str,
    target: str,
    graph_id: int,
    earlier: Iterable[NodeSource],
    pass_name: str,
    *actions: NodeSourceAction,
) -> NodeSource:
    """Return what `torch.fx.traceback.NodeSource` makes of a node.

    Args:
        name: of the node.
        target: its target as text.
        graph_id: of its graph.
        earlier: its own records.
        pass_name: what made a node of it.
        actions: what that did.
    """
    made = _new(NodeSource)
    fields = made.__dict__
    fields.update(_fields(pass_name, actions))
    fields["action"] = [*actions]
    fields["node_info"] = NodeSource.NodeInfo(name, target, graph_id)
    fields["from_node"] = [*earlier] if _shares_records() else [*map(_copied, earlier)]
    return made


_new = object.__new__


@functools.cache
def _fields(pass_name: str, actions: tuple[NodeSourceAction, ...]) -> dict[str, Any]:
    """Return the fields of a record of no node, in torch's order."""
    return dict(vars(NodeSource(None, pass_name, [*actions])))


@functools.cache
def _shares_records() -> bool:
    """Return whether the records of a node become a part of the next one as they are.

    torch copies them deeply, or not, by its version.
    """
    graph = Graph()
    node = graph.placeholder("x")
    node.meta["from_node"] = [NodeSource(None)]
    return NodeSource(node).from_node[0] is node.meta["from_node"][0]


def _copied(record: NodeSource) -> NodeSource:
    """Return a deep copy. Nothing changes a record but the caches within it."""
    made = _new(NodeSource)
    fields = made.__dict__
    fields.update(record.__dict__)
    fields["action"] = [*record.action]
    if record.node_info is not None:
        info = fields["node_info"] = _new(NodeSource.NodeInfo)
        info.__dict__.update(record.node_info.__dict__)
    fields["from_node"] = [*map(_copied, record.from_node)]
    return made
