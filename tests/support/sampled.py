"""A sample of cases for CI; with FXPRESS_CASES=all, all of them."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")
_ALL = os.environ.get("FXPRESS_CASES") == "all"


def sampled(cases: Sequence[T], count: int, seed: int) -> list[T]:
    """Return `count` of the cases, the same ones for a seed; all if FXPRESS_CASES is "all"."""
    if _ALL or len(cases) <= count:
        return list(cases)
    return random.Random(seed).sample(cases, count)


def turns(first: Sequence[Any], second: Sequence[Any], times: int = 1) -> list[tuple[Any, Any]]:
    """Pairs in which both take turns, not every pair there is.

    Each member of the longer sequence occurs `times` times, each time with another of the shorter.
    """
    if len(first) < len(second):
        return [(a, b) for b, a in turns(second, first, times)]
    times = len(second) if _ALL else min(times, len(second))
    count = len(second)
    return [(a, second[(i + t) % count]) for t in range(times) for i, a in enumerate(first)]
