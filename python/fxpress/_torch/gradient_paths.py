"""Find stages whose backward torch's zero-bubble schedules cannot take in two parts.

These schedules take the backward of the inputs first, and of the parameters then, by groups: what
hangs on the nodes that the first part has passed. torch takes another way for the first stage
alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import Node, get_gradient_edge
from torch.distributed.pipelining import _backward


def is_divisible(
    outputs: Iterable[Any], inputs: Iterable[Any], parameters: Iterable[torch.Tensor]
) -> bool:
    """Return whether the gradients of the parameters come out right in two parts."""
    ends, roots, weights = map(_nodes, (inputs, outputs, parameters))
    return not loses_gradients(roots, ends) and not runs_twice(roots, ends, weights)


def loses_gradients(roots: list[Node], ends: list[Node]) -> bool:
    """Return whether a parameter has a path to an output that meets no path from an input."""
    meets = dict.fromkeys(ends, True)
    stack = [(node, False) for node in roots]
    while stack:  # children before parents
        node, is_ready = stack.pop()
        if node in meets:
            continue
        children = [child for child, _ in node.next_functions if child is not None]
        if is_ready:
            meets[node] = any(meets[child] for child in children)
        else:
            stack.append((node, True))
            stack += [(child, False) for child in children]
    left, seen = [node for node in roots if not meets[node]], set()
    while left:
        node = left.pop()
        if hasattr(node, "variable"):  # it adds to the gradient of a parameter
            return True
        for child, _ in node.next_functions:
            if child is not None and not meets[child] and child not in seen:
                seen.add(child)
                left.append(child)
    return False


def runs_twice(roots: list[Node], ends: list[Node], weights: list[Node]) -> bool:
    """Return whether torch runs a node for two groups of parameters, which frees it for the first.

    That is where a weight is used at several nodes of the path of the inputs, and others have
    weights of their own between these.
    """
    users = _backward.construct_reverse_graph(roots)
    groups = _backward.get_param_groups(ends, weights, users)
    owner: dict[Node, int] = {}
    for number, group in enumerate(groups):
        for node in (*group["intermediates"], *group["params"]):
            if owner.setdefault(node, number) != number:
                return True
    for number, group in enumerate(groups):
        if len(group["intermediates"]) > 1:
            above, _ = _backward.reverse_closure(list(group["params"]), set(), users)
            if any(owner.setdefault(node, number) != number for node in _below(group, above)):
                return True
    return False


def _below(group: dict[str, Any], wanted: set[Node]) -> set[Node]:
    """Return the nodes that the backward of a group runs: those on the way to its parameters."""
    found: set[Node] = set()
    left = list(group["intermediates"])
    while left:
        node = left.pop()
        if node in wanted and node not in found:
            found.add(node)
            left += [child for child, _ in node.next_functions if child is not None]
    return found


def _nodes(values: Iterable[Any]) -> list[Node]:
    return [
        get_gradient_edge(each).node
        for each in values
        if isinstance(each, torch.Tensor) and each.requires_grad
    ]
