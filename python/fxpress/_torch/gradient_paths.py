"""Find parameters whose gradients torch's zero-bubble schedules would lose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge


def loses_gradients(outputs: Iterable[Any], inputs: Iterable[Any]) -> bool:
    """Return whether a parameter has a path to an output that meets no path from an input.

    These schedules take the backward of the inputs first, and of the parameters then what hangs on
    the nodes that it has passed. torch takes another way for the first stage alone.
    """
    ends = {get_gradient_edge(each).node for each in inputs if _has_gradient(each)}
    roots = [get_gradient_edge(each).node for each in outputs if _has_gradient(each)]
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


def _has_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
