"""The order of the operations of a program, in which stages are runs of them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.fx import Graph, GraphModule, Node

from fxpress._graphs.partition.callback import operations


def operations_of(module: GraphModule) -> list[Node]:
    """Return the operations in the order of the graph, but copies at its end after what they copy.

    Export writes `self.steps += 1` as a copy into the buffer behind all else, which would keep all
    between in one stage. A stage runs its operations in the order of the graph.
    """
    nodes = list(operations(module))
    copies: dict[Node, list[Node]] = {}
    last = list(_last_copies(module.graph))
    for node in reversed(last):
        copies.setdefault(node.args[1], []).append(node)
    if not last:
        return nodes
    kept = nodes[: -len(last)]
    return [each for node in kept for each in (node, *copies.get(node, ()))]


def _last_copies(graph: Graph) -> Iterator[Node]:
    """Yield copies of operations' values into placeholders, from the end of the graph on."""
    node = graph.output_node().prev
    while node.target is torch.ops.aten.copy_.default and not node.users and len(node.args) == 2:
        target, value = node.args
        if not isinstance(target, Node) or target.op != "placeholder":
            return
        if not isinstance(value, Node) or value.op != "call_function":
            return
        if value.target is torch.ops.aten.copy_.default:
            return
        yield node
        node = node.prev
