"""Find the operations of a program that have to be in one stage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._distributed.stages.reading import Reading
from fxpress._distributed.stages.sizes import value_of

_PASSED = (torch.Tensor, torch.SymInt)  # torch's files have no other inputs of programs


class Span(NamedTuple):
    """Operations between which no cut may be.

    Attributes:
        first, last: their numbers in the order of the graph.
        reason: why, for an error.
    """

    first: int
    last: int
    reason: str


def spans_of(reading: Reading) -> Iterator[Span]:
    """Yield what has to stay together.

    A state or an input that is written is read and written in one stage, as each stage has a copy
    of its own. So is another value, up to its last write. Lists and objects are used where they are
    made: only tensors and integers pass from a stage to another.
    """
    places, ends = reading.numbers, reading.ends
    objects = ends.objects()
    for node, storage in reading.storages.items():
        if node in ends.written:
            touching = [*storage.touching, ends.written[node]]
        elif not storage.writing and node not in objects:
            continue
        else:
            touching = storage.touching
            if node.op != "placeholder":
                last = max(places[each] for each in storage.writing)
                touching = [each for each in touching if places[each] <= last]
        yield from _around(touching, places, f"{node} is written")
    for node in reading.operations:
        if not isinstance(value_of(node), _PASSED):
            yield from _around(
                [node, *node.users], places, f"{node} is neither a tensor nor an integer"
            )


def _around(nodes: Iterable[Any], places: dict[Node, int], reason: str) -> Iterator[Span]:
    numbers = [places[each] for each in nodes if each in places]
    if numbers and min(numbers) < max(numbers):
        yield Span(min(numbers), max(numbers), reason)
