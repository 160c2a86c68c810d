"""Find where a program may be cut, and which operations have to be in one stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.analysis import Analysis
from fxpress._distributed.stages.ends import value_of
from fxpress._distributed.stages.lifetimes import Lifetimes
from fxpress._graphs.partition.by_module import by_module

_MOST_COMPONENTS = 100  # the maximum number of components of a module's path
_PASSED = (torch.Tensor, torch.SymInt)  # the types of inputs that torch's files support


def places_of(count: int, spans: Iterable[Span], stages: int) -> list[int]:
    """Return, for each possible cut, the number of the operation after it; add 0 and `count`."""
    spans = list(spans)
    changes = [0] * (count + 1)  # at each place: how many spans begin minus how many end
    for span in spans:
        changes[span.first + 1] += 1
        changes[span.last + 1] -= 1
    around = list(accumulate(changes))
    places = [0, *(place for place in range(1, count) if not around[place]), count]
    if len(places) - 1 < stages:
        longest = sorted(spans, key=lambda span: span.first - span.last)[:3]
        why = ", ".join(span.reason for span in longest)
        raise StageError(
            f"cannot make {stages} stages: the program can be cut at {len(places) - 2} places"
            + (f", but not where {why}" if why else "")
        )
    return places


def spans_of_parameters(lifetimes: Lifetimes) -> Iterator[Span]:
    """Yield, for each parameter, the span from its first to its last use."""
    first: dict[Any, int] = {}
    last: dict[Any, int] = {}
    for number, keys in enumerate(lifetimes.uses):
        for key in keys:
            first.setdefault(key, number)
            last[key] = number
    for key, number in first.items():
        state = lifetimes.state[key]
        if state.is_parameter and number < last[key]:
            yield Span(number, last[key], f"{next(iter(state.names))} is used")


def places_of_modules(analysis: Analysis, places: list[int]) -> Iterator[list[int]]:
    """Yield, for each depth of modules from 1 on, the places where a module ends."""
    nodes = analysis.operations
    for depth in range(1, _deepest(nodes) + 1):
        found = by_module(analysis.program.graph_module, depth=depth)
        inner = [at for at in places[1:-1] if found[nodes[at]] != found[nodes[at - 1]]]
        yield [0, *inner, len(nodes)]


def _deepest(nodes: list[Any]) -> int:
    """Return the number of components of the longest path, at most `_MOST_COMPONENTS`."""
    paths = (
        path for node in nodes for path, _ in (node.meta.get("nn_module_stack") or {}).values()
    )
    most = max((path.count(".") + path.count("[") for path in paths), default=0) + 1
    return min(most, _MOST_COMPONENTS)


class Span(NamedTuple):
    """Operations between which a cut is not possible."""

    first: int  # the number of the first operation, see `operations_of`
    last: int  # the number of the last operation
    reason: str  # why a cut is not possible, for an error


def spans_of(analysis: Analysis) -> Iterator[Span]:
    """Yield spans of operations; one stage has to contain all operations of a span."""
    places, ends = analysis.numbers, analysis.ends
    objects = ends.objects()
    # Each stage has its own copy of state and inputs, so one stage has to contain all uses of a
    # storage that is written.
    results: dict[Node, list[Any]] = {}  # node of a storage -> its final values
    for node, result in ends.written.items():
        results.setdefault(analysis.same.get(node, node), []).append(result)
    for node, storage in analysis.storages.items():
        if node in results:
            touching = [*storage.touching, *results[node]]
        elif not storage.writing and node not in objects:
            continue
        else:
            touching = storage.touching
            if node.op != "placeholder":
                last = max(places[each] for each in storage.writing)
                touching = [each for each in touching if places[each] <= last]
        yield from _around(touching, places, f"{node} is written")
    for node in analysis.operations:
        if not isinstance(value_of(node), _PASSED):
            yield from _around(
                [node, *node.users], places, f"{node} is neither a tensor nor an integer"
            )


def _around(nodes: Iterable[Any], places: dict[Node, int], reason: str) -> Iterator[Span]:
    numbers = [places[each] for each in nodes if each in places]
    if numbers and min(numbers) < max(numbers):
        yield Span(min(numbers), max(numbers), reason)
