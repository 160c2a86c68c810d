"""Which numbers of a trace a template keeps."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from torch.fx import Node

from fxpress._torch import symbols as compat


class Entry(NamedTuple):
    """A node of a trace that a template keeps.

    Attributes:
        node: the node.
        is_needed: whether it stands for a number that is computed elsewhere.
    """

    node: Node
    is_needed: bool


def _is_number(node: Node) -> bool:
    return type(node.meta.get("val")) in compat.KINDS


def needed_numbers(added: list[Node], returned: Iterable[Node]) -> list[Entry]:
    """Return the nodes of a template, in order.

    torch computes many numbers only to decide something: nothing uses their nodes. The template
    has those that its other nodes use, or that the call returns.
    """
    used: dict[Node, None] = {}
    own = set(added)
    waiting = [node for node in returned if node in own]
    for node in added:
        if not _is_number(node):
            waiting += [each for each in node.all_input_nodes if _is_number(each)]
    while waiting:
        node = waiting.pop()
        if node not in used:
            used[node] = None
            if node in own and compat.computes(node.target):
                waiting += node.all_input_nodes
    from_elsewhere = [Entry(node, True) for node in used if node not in own]
    kept = [
        Entry(node, _is_number(node) and not compat.computes(node.target))
        for node in added
        if node in used or not _is_number(node)
    ]
    return from_elsewhere + kept
