"""Find the live values at each operation of a program, and the state that the operation uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from itertools import accumulate
from typing import NamedTuple

import torch
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fxpress._distributed.stages.ends import bytes_of, is_mutation, state_of, storage_of
from fxpress._distributed.stages.reading import Reading


@dataclasses.dataclass(frozen=True)
class Lives:
    """Bytes of values, by the number of an operation in the order of the graph."""

    # Bytes of the values that exist before an operation and are used by it or later: a cut before
    # the operation has to pass them.
    crossing: list[int]
    alive: list[int]  # bytes of the values that are in memory while an operation runs
    # Bytes of the new values of state that an operation computes, which are kept until the end of
    # the stage.
    written: list[int]
    uses: list[tuple[Hashable, ...]]  # the keys of the state that each operation uses
    state: dict[Hashable, State]  # the storage of each key
    # The tensors of state that each operation is the first to use.
    brought: list[list[torch.Tensor]]


@dataclasses.dataclass(slots=True)
class State:
    """A storage of state."""

    nbytes: int = 0  # the bytes of the largest tensor in it
    # The names of the tensors in it that operations use, in order of first use.
    names: dict[str, None] = dataclasses.field(default_factory=dict)
    is_parameter: bool = False  # whether one of them is a parameter


class _Uses(NamedTuple):
    """See the attributes of `Lives`; `keys` are its `uses`."""

    keys: list[tuple[Hashable, ...]]
    state: dict[Hashable, State]
    brought: list[list[torch.Tensor]]


def lives_of(reading: Reading) -> Lives:
    """Return the lifetimes of a program's values; results are passed on to the last stage."""
    results = [(value, spec) for value, spec in reading.ends.results if isinstance(value, Node)]
    returned = {value for value, spec in results if not is_mutation(spec)}
    replacing = {value for value, spec in results if is_mutation(spec)} - returned
    sizes = {node: bytes_of(node) for node in (*reading.ends.inputs, *reading.operations)}
    uses = _uses(reading)
    return Lives(
        _crossing(reading, sizes, returned),
        _alive(reading, sizes, returned, replacing),
        [sizes[node] if node in replacing else 0 for node in reading.operations],
        uses.keys,
        uses.state,
        uses.brought,
    )


def _crossing(reading: Reading, sizes: dict[Node, int], returned: set[Node]) -> list[int]:
    count = len(reading.operations)
    last: dict[Node, int] = {}  # value -> the number of the last operation that uses it
    for number, sources in enumerate(reading.sources):
        for source in sources:
            last[source] = number
    last.update(dict.fromkeys(returned, count))
    changes = [0] * (count + 2)
    for number, node in enumerate(reading.operations):
        if node in last:
            changes[number + 1] += sizes[node]
            changes[last[node] + 1] -= sizes[node]
    for node in reading.ends.inputs:
        if node in last and node not in returned:
            changes[0] += sizes[node]
            changes[last[node] + 1] -= sizes[node]
    return list(accumulate(changes))[:count]


def _alive(
    reading: Reading, sizes: dict[Node, int], returned: set[Node], replacing: set[Node]
) -> list[int]:
    changes = [0] * (len(reading.operations) + 1)
    for node, storage in reading.storages.items():
        if node not in sizes:
            continue  # state
        if not returned.isdisjoint(storage.results):
            until = len(reading.operations) - 1
        elif not storage.touching or not replacing.isdisjoint(storage.results):
            continue  # nothing uses it, or `written` has it
        else:
            until = reading.numbers[storage.touching[-1]]
        changes[reading.numbers.get(node, 0)] += sizes[node]
        changes[until + 1] -= sizes[node]
    return list(accumulate(changes))[: len(reading.operations)]


def _uses(reading: Reading) -> _Uses:
    values, specs = state_of(reading.program), reading.ends.state
    found = _Uses([], {}, [])
    keys: dict[Node, Hashable] = {}
    seen: set[int] = set()  # ids of tensors
    for sources in reading.sources:
        if specs.keys().isdisjoint(sources):
            found.keys.append(())
            found.brought.append([])
            continue
        used: dict[Hashable, None] = {}
        brought: list[torch.Tensor] = []
        for source in sources:
            if source in keys:
                used[keys[source]] = None
            elif source in specs:
                spec = specs[source]
                value = values[spec.target or ""]
                keys[source] = key = storage_of(value)
                used[key] = None
                held = found.state.get(key)
                if held is None:
                    held = found.state[key] = State()
                held.names[spec.target or ""] = None
                held.is_parameter |= spec.kind is InputKind.PARAMETER
                if isinstance(value, torch.Tensor) and id(value) not in seen:
                    seen.add(id(value))
                    brought.append(value)
                    held.nbytes = max(held.nbytes, int(value.nbytes))
        found.keys.append(tuple(used))
        found.brought.append(brought)
    return found
