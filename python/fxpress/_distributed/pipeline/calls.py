"""Names of modules that a program calls several times, of which a stage has some of the calls."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from torch.fx import Graph

_CALL = re.compile(r"@\d+(?=\.|$)")


def plain(name: str) -> str:
    """Return the original name of a module, a parameter or a buffer of one of its calls."""
    return _CALL.sub("", name)


def number_calls(graph: Graph) -> None:
    """Number the calls of each module of a stage anew, from the one with the most operations on.

    The first call has the module's own name, and the others are "@1", "@2" and so on behind it. A
    stage that begins with a later call would otherwise have no module of the original name. Calls
    within a call come in the order of these. The stacks of modules in the metadata are replaced.
    """
    stacks = [node.meta.get("nn_module_stack") or {} for node in graph.nodes]
    if not any("@" in key for stack in stacks for key in stack):
        return
    sizes = Counter(key for stack in stacks for key in stack)
    around: dict[str, str] = {}  # call -> the call that it is made in
    calls: list[dict[str, list[str]]] = []  # by depth: module -> its calls
    for stack in stacks:
        outer = ""
        for depth, key in enumerate(stack):
            if key not in around:
                around[key] = outer
                calls += [{} for _ in range(depth + 1 - len(calls))]
                calls[depth].setdefault(plain(key), []).append(key)
            outer = key
    numbers = {"": 0}
    for modules in calls:
        for keys in modules.values():
            keys.sort(key=lambda key: (numbers[around[key]], -sizes[key]))
            numbers.update(zip(keys, range(len(keys)), strict=True))
    made: dict[tuple[str, ...], dict[str, Any]] = {}
    for node, stack in zip(graph.nodes, stacks, strict=True):
        if any("@" in key for key in stack):
            names = tuple(stack)
            if names not in made:
                made[names] = {_named(key, numbers[key]): held for key, held in stack.items()}
            node.meta["nn_module_stack"] = made[names]


def _named(call: str, number: int) -> str:
    return f"{plain(call)}@{number}" if number else plain(call)
