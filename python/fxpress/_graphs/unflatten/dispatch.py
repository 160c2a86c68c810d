"""Put dispatchers into an existing tree of modules, for code that calls single steps of torch.

`unflatten` itself plans dispatchers (`InterpreterModuleDispatcher`) before it creates modules.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from fxpress._graphs.unflatten.attributes import _compute_accessor


def dispatch_modules(
    root: Any,
    redirected_call_indices: dict[str, str],
    consts_targets: set[str],
    make_dispatcher: Callable[[set[str], list[Any]], torch.nn.Module],
) -> None:
    """Merge the modules of repeated calls, as torch's `_dispatch_modules` does."""
    calls: dict[str, list[tuple[int, str, torch.nn.Module]]] = defaultdict(list)
    for entry in root.module_call_graph:
        if not entry.fqn or not entry.signature:
            continue
        fqn = redirected_call_indices.get(entry.fqn, entry.fqn)
        base, _, number = entry.fqn.partition("@")
        calls[base].append((int(number or 0), entry.fqn, root.get_submodule(fqn)))
    attributes: dict[str, set[str]] = defaultdict(set)
    for target in consts_targets:
        path, _, name = target.rpartition(".")
        attributes[path].add(name)
    for base, entries in calls.items():
        if len(entries) < 2:
            continue
        for _, fqn, _ in entries:
            if fqn not in redirected_call_indices:
                path, _, name = fqn.rpartition(".")
                root.get_submodule(path)._modules.pop(name)
        modules: list[Any] = [module for _, _, module in sorted(entries, key=lambda e: e[0])]
        root.set_submodule(base, make_dispatcher(attributes[base], modules))
    for fqn, module in list(root.named_modules(remove_duplicate=False)):
        for part in getattr(module, "_call_modules", [module]):
            if isinstance(getattr(part, "graph", None), torch.fx.Graph):
                _drop_numbers(fqn, part.graph, calls)


def _drop_numbers(fqn: str, graph: torch.fx.Graph, called: dict[str, Any]) -> None:
    """Change targets such as "a@1" to "a", because the dispatcher at "a" counts the calls."""
    path = ".".join(part.split("@")[0] for part in fqn.split("."))
    for node in graph.find_nodes(op="call_module"):
        full = f"{path}.{node.target}" if path else str(node.target)
        base = full.split("@")[0]
        if base in called:
            node.target = _compute_accessor(path, base)
