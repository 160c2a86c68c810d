"""Find which values of a program are alive where, and what state each operation uses."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable
from itertools import accumulate
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._stages.ends import Ends, is_mutation, state_of
from fxpress._stages.sizes import bytes_of
from fxpress._stages.writes import Storage


@dataclasses.dataclass(frozen=True)
class Lives:
    """Bytes of values, by the number of an operation in the order of the graph.

    Attributes:
        crossing: of the values that are made before an operation and taken by it or later: what a
            cut before it has to pass.
        alive: of the values that are in memory while an operation runs.
        written: of the new values of state that an operation makes, which stay until the stage
            ends.
        uses: the keys of the state that each operation uses.
        state: what each key stands for.
    """

    crossing: list[int]
    alive: list[int]
    written: list[int]
    uses: list[tuple[Hashable, ...]]
    state: dict[Hashable, State]


@dataclasses.dataclass
class State:
    """A storage of state.

    Attributes:
        nbytes: the bytes of the largest tensor in it.
        names: the names of the tensors in it that operations use, in order of first use.
        is_parameter: whether one of them is a parameter.
    """

    nbytes: int = 0
    names: dict[str, None] = dataclasses.field(default_factory=dict)
    is_parameter: bool = False


def lives_of(
    program: ExportedProgram, operations: list[Node], storages: dict[Node, Storage]
) -> Lives:
    """Return how long the values of a program live.

    A result of the program passes on to the last stage, and an input comes from the first.

    Args:
        program: the program.
        operations: of its own graph, in order.
        storages: of its graph.
    """
    ends = Ends(program)
    places = {node: number for number, node in enumerate(operations)}
    results = [(value, spec) for value, spec in ends.results if isinstance(value, Node)]
    returned = {value for value, spec in results if not is_mutation(spec)}
    replacing = {value for value, spec in results if is_mutation(spec)} - returned
    uses, state = _uses(program, ends, operations)
    return Lives(
        _crossing(ends, operations, returned),
        _alive(ends, operations, places, storages, returned, replacing),
        [bytes_of(node) if node in replacing else 0 for node in operations],
        uses,
        state,
    )


def _crossing(ends: Ends, operations: list[Node], returned: set[Node]) -> list[int]:
    last: dict[Node, int] = {}  # number of the last operation that takes a value
    for number, node in enumerate(operations):
        for source in node.all_input_nodes:
            last[source] = number
    changes = [0] * (len(operations) + 2)
    for number, node in enumerate(operations):
        until = len(operations) if node in returned else last.get(node, number)
        if until > number:
            size = bytes_of(node)
            changes[number + 1] += size
            changes[until + 1] -= size
    for node in ends.inputs:
        if node in last:
            size = bytes_of(node)
            changes[0] += size
            changes[last[node] + 1] -= size
    return list(accumulate(changes))[: len(operations)]


def _alive(
    ends: Ends,
    operations: list[Node],
    places: dict[Node, int],
    storages: dict[Node, Storage],
    returned: set[Node],
    replacing: set[Node],
) -> list[int]:
    changes = [0] * (len(operations) + 1)
    for node, storage in storages.items():
        if node in ends.state:
            continue
        touching = [places[each] for each in storage.touching]
        if not returned.isdisjoint(storage.results):
            until = len(operations) - 1
        elif not touching or not replacing.isdisjoint(storage.results):
            continue  # nothing uses it, or `written` has it
        else:
            until = touching[-1]
        size = bytes_of(node)
        changes[max(places.get(node, 0), 0)] += size
        changes[until + 1] -= size
    return list(accumulate(changes))[: len(operations)]


def _uses(
    program: ExportedProgram, ends: Ends, operations: list[Node]
) -> tuple[list[tuple[Hashable, ...]], dict[Hashable, State]]:
    values = state_of(program)
    state: dict[Hashable, State] = {}
    keys: dict[Node, Hashable] = {}
    uses: list[tuple[Hashable, ...]] = []
    for node in operations:
        used: dict[Hashable, None] = {}
        for source in node.all_input_nodes:
            spec = ends.state.get(source)
            if spec is None:
                continue
            name = str(spec.target)
            if source not in keys:
                keys[source] = _key(values[name])
                held = state.setdefault(keys[source], State())
                held.nbytes = max(held.nbytes, _nbytes(values[name]))
                held.names[name] = None
                held.is_parameter |= spec.kind.name == "PARAMETER"
            used[keys[source]] = None
        uses.append(tuple(used))
    return uses, state


def _key(value: Any) -> Hashable:
    """Return what is equal for tensors of one storage."""
    is_plain = isinstance(value, torch.Tensor) and value.layout is torch.strided
    return ("storage", value.untyped_storage()._cdata) if is_plain else ("object", id(value))


def _nbytes(value: Any) -> int:
    return int(value.nbytes) if isinstance(value, torch.Tensor) else 0
