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
    """Return some of the pairs of a member of `first` and a member of `second`.

    Each member of the longer sequence is in `times` pairs, with different members of the shorter.
    """
    if len(first) < len(second):
        return [(a, b) for b, a in turns(second, first, times)]
    times = len(second) if _ALL else min(times, len(second))
    count = len(second)
    return [(a, second[(i + t) % count]) for t in range(times) for i, a in enumerate(first)]
