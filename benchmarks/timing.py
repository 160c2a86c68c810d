"""Time actions alternately, so that a slow period of the machine affects all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Action = Callable[[], float]  # runs the action once, and returns the seconds
_Name = TypeVar("_Name")


def stopwatch(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> Action:
    """Return an action that times a call, without the time for freeing its result.

    Args:
        clock: for long calls on one thread, `time.process_time`: other programs affect it less.
    """

    def action() -> float:
        start = clock()
        result = call()
        seconds = clock() - start
        del result
        return seconds

    return action


def interleaved(actions: Mapping[_Name, Action], rounds: int) -> dict[_Name, list[float]]:
    """Run the actions in turn, `rounds` times, each after a full garbage collection.

    Every second round is in reverse order, so that no action always follows the same other action.

    Returns:
        Seconds by name, in order of the rounds.
    """
    seconds: dict[_Name, list[float]] = {name: [] for name in actions}
    for i in range(rounds):
        order = list(actions) if i % 2 == 0 else list(actions)[::-1]
        for name in order:
            gc.collect()
            seconds[name].append(actions[name]())
    gc.collect()
    return seconds


@dataclass(frozen=True)
class Ratio:
    """The time of one action over the time of another.

    Attributes:
        median: ratio of the medians.
        low, high: the smallest and the largest ratio of a single round.
    """

    median: float
    low: float
    high: float


def ratio(longer: list[float], shorter: list[float]) -> Ratio:
    """Return the ratio of two lists of times, which were measured in the same rounds."""
    pairs = [a / b for a, b in zip(longer, shorter, strict=True)]
    return Ratio(statistics.median(longer) / statistics.median(shorter), min(pairs), max(pairs))


def per_node(seconds: list[float], nodes: int) -> float:
    """Return the median time per node in microseconds."""
    return statistics.median(seconds) / nodes * 1e6
