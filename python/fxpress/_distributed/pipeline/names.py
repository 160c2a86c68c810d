"""Handle the names in a stage's module: repeated calls, tied weights, and the order of names."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.fx import Graph

_CALL = re.compile(r"@\d+(?=\.|$)")  # torch's suffix for the second and further calls of a module


def plain(name: str) -> str:
    """Return the original name of a module, parameter or buffer, without suffixes such as "@1"."""
    return _CALL.sub("", name)


def number_calls(graph: Graph) -> None:
    """Renumber each module's calls in the metadata of nodes; the call with most nodes is first."""
    stacks = [node.meta.get("nn_module_stack") or {} for node in graph.nodes]
    if not any("@" in key for stack in stacks for key in stack):
        return
    sizes = Counter(key for stack in stacks for key in stack)
    around: dict[str, str] = {}  # call -> the call that contains it
    calls: list[dict[str, list[str]]] = []  # for each depth: module -> its calls
    for stack in stacks:
        outer = ""
        for depth, key in enumerate(stack):
            if key not in around:
                around[key] = outer
                calls += [{} for _ in range(depth + 1 - len(calls))]
                calls[depth].setdefault(plain(key), []).append(key)
            outer = key
    # The largest call gets the module's name. All other calls get a suffix: "@1", "@2".
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


def tied(module: nn.Module) -> list[list[str]]:
    """Return the names of each parameter and buffer that has several names."""
    names: dict[int, list[str]] = {}
    for prefix, each in module.named_modules(remove_duplicate=False):
        for name, tensor in (*each._parameters.items(), *each._buffers.items()):
            if tensor is not None:
                names.setdefault(id(tensor), []).append(f"{prefix}.{name}" if prefix else name)
    return [each for each in names.values() if len(each) > 1]


def tensor_of(module: nn.Module, name: str) -> torch.Tensor:
    """Return a parameter or a buffer by name."""
    path, _, own = name.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(path), own)
    return found


def tie(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Assign a tensor to the name of a parameter or a buffer."""
    path, _, own = name.rpartition(".")
    setattr(module.get_submodule(path), own, tensor)


@contextlib.contextmanager
def kept(module: nn.Module) -> Iterator[None]:
    """Run a block that may replace tensors of a module; then tie the tied weights again."""
    before = tied(module)
    yield
    for first, *others in before:
        tensor = tensor_of(module, first)
        for name in others:
            if tensor_of(module, name) is not tensor:
                tie(module, name, tensor)


def restore_order(module: nn.Module, names: Iterable[str]) -> None:
    """Sort modules, parameters and buffers as in the model: optimizers rely on the order."""
    places: dict[str, int] = {}
    for number, name in enumerate(names):
        path = ""
        for part in name.split("."):
            path = f"{path}.{part}" if path else part
            places.setdefault(path, number)
    for prefix, each in module.named_modules(remove_duplicate=False):
        for held in (each._modules, each._parameters, each._buffers):
            _sort(held, f"{plain(prefix)}." if prefix else "", places)


def _sort(held: dict[str, Any], prefix: str, places: dict[str, int]) -> None:
    order = sorted(held, key=lambda name: places.get(prefix + plain(name), len(places)))
    for name in order:
        held[name] = held.pop(name)
