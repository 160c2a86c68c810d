"""Find the live values at each operation of a program, and the state that the operation uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from itertools import accumulate

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fxpress._distributed.stages.analysis import Analysis
from fxpress._distributed.stages.ends import bytes_of, is_mutation, state_of, storage_of


@dataclasses.dataclass(frozen=True)
class Lifetimes:
    """The values that are live at each operation; lists are in the order of the operations."""

    crossing: list[int]  # bytes that pass between stages if one begins at the operation
    alive: list[int]  # bytes of the values that are in memory while the operation runs
    # Bytes of a result that replaces state or an input. The result is kept until the stage ends.
    written: list[int]
    uses: list[tuple[Hashable, ...]]  # the keys (`storage_of`) of the state that the operation uses
    state: dict[Hashable, State]  # key -> the storage
    brought: list[list[torch.Tensor]]  # tensors of state that the operation is the first to use


@dataclasses.dataclass(slots=True)
class State:
    """A storage of parameters, buffers or constants."""

    nbytes: int = 0  # the bytes of the largest tensor in the storage
    # The names of the storage's tensors that operations use, in order of first use.
    names: dict[str, None] = dataclasses.field(default_factory=dict)
    is_parameter: bool = False  # whether one of the names is a parameter


def lifetimes_of(analysis: Analysis) -> Lifetimes:
    """Return the lifetimes of a program's values; its results live until the last stage ends."""
    results = [(value, spec) for value, spec in analysis.ends.results if isinstance(value, Node)]
    returned = {value for value, spec in results if not is_mutation(spec)}
    replacing = {value for value, spec in results if is_mutation(spec)} - returned
    sizes = {node: bytes_of(node) for node in (*analysis.ends.inputs, *analysis.operations)}
    return Lifetimes(
        _crossing(analysis, sizes, returned),
        _alive(analysis, sizes, returned, replacing),
        [sizes[node] if node in replacing else 0 for node in analysis.operations],
        *_uses(analysis),
    )


def _crossing(analysis: Analysis, sizes: dict[Node, int], returned: set[Node]) -> list[int]:
    count = len(analysis.operations)
    last: dict[Node, int] = {}  # value -> the number of the last operation that uses it
    for number, sources in enumerate(analysis.sources):
        for source in sources:
            last[source] = number
    last.update(dict.fromkeys(returned, count))
    changes = [0] * (count + 2)
    for number, node in enumerate(analysis.operations):
        if node in last:
            changes[number + 1] += sizes[node]
            changes[last[node] + 1] -= sizes[node]
    for node in analysis.ends.inputs:
        if node in last and node not in returned:
            changes[0] += sizes[node]
            changes[last[node] + 1] -= sizes[node]
    return list(accumulate(changes))[:count]


def _alive(
    analysis: Analysis, sizes: dict[Node, int], returned: set[Node], replacing: set[Node]
) -> list[int]:
    changes = [0] * (len(analysis.operations) + 1)
    for node, storage in analysis.storages.items():
        if node not in sizes:
            continue  # `node` is state
        if not returned.isdisjoint(storage.results):
            until = len(analysis.operations) - 1
        elif not storage.touching or not replacing.isdisjoint(storage.results):
            continue  # nothing uses the value, or `written` counts it
        else:
            until = analysis.numbers[storage.touching[-1]]
        changes[analysis.numbers.get(node, 0)] += sizes[node]
        changes[until + 1] -= sizes[node]
    return list(accumulate(changes))[: len(analysis.operations)]


def _uses(
    analysis: Analysis,
) -> tuple[list[tuple[Hashable, ...]], dict[Hashable, State], list[list[torch.Tensor]]]:
    """Return the attributes `uses`, `state` and `brought` of `Lifetimes`."""
    values, specs = state_of(analysis.program), analysis.ends.state
    uses: list[tuple[Hashable, ...]] = []
    state: dict[Hashable, State] = {}
    brought: list[list[torch.Tensor]] = []
    keys: dict[Node, Hashable] = {}
    seen: set[int] = set()  # ids of tensors
    for sources in analysis.sources:
        if specs.keys().isdisjoint(sources):
            uses.append(())
            brought.append([])
            continue
        used: dict[Hashable, None] = {}
        new: list[torch.Tensor] = []
        for source in sources:
            if source in keys:
                used[keys[source]] = None
            elif source in specs:
                spec = specs[source]
                value = values[spec.target or ""]
                keys[source] = key = storage_of(value)
                used[key] = None
                held = state.setdefault(key, State())
                held.names[spec.target or ""] = None
                held.is_parameter |= spec.kind is InputKind.PARAMETER
                if isinstance(value, torch.Tensor) and id(value) not in seen:
                    seen.add(id(value))
                    new.append(value)
                    held.nbytes = max(held.nbytes, int(value.nbytes))
        uses.append(tuple(used))
        brought.append(new)
    return uses, state, brought
