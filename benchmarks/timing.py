"""Times of actions that take turns, so that a slow spell of the machine meets all of them."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Action = Callable[[], float]  # does it once; gives the seconds it took


def stopwatch(call: Callable[[], Any]) -> Action:
    """Times a call; dropping its result is not part of the time."""

    def action() -> float:
        start = time.perf_counter()
        result = call()
        seconds = time.perf_counter() - start
        del result
        return seconds

    return action


def interleaved(actions: Mapping[str, Action], rounds: int) -> dict[str, list[float]]:
    """Runs the actions in turn, `rounds` times, each behind a full garbage collection.

    Every other round goes backwards, so that none always follows the same one.

    Returns:
        Seconds by name, in order of the rounds.
    """
    seconds: dict[str, list[float]] = {name: [] for name in actions}
    for i in range(rounds):
        order = list(actions) if i % 2 == 0 else list(actions)[::-1]
        for name in order:
            gc.collect()
            seconds[name].append(actions[name]())
    gc.collect()
    return seconds


@dataclass(frozen=True)
class Ratio:
    """How many times longer one action takes than another.

    Attributes:
        median: ratio of the medians.
        low, high: smallest and largest ratio within a round.
    """

    median: float
    low: float
    high: float


def ratio(longer: list[float], shorter: list[float]) -> Ratio:
    """Compares times of the same rounds."""
    pairs = [a / b for a, b in zip(longer, shorter, strict=True)]
    return Ratio(statistics.median(longer) / statistics.median(shorter), min(pairs), max(pairs))


def per_node(seconds: list[float], nodes: int) -> float:
    """Median in microseconds a node."""
    return statistics.median(seconds) / nodes * 1e6
