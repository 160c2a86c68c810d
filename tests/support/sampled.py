"""A sample of many cases for the ordinary run; FXPRESS_HOSTILE=all asks for all of them."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def sampled(cases: Sequence[T], count: int, seed: int) -> list[T]:
    """`count` of the cases, the same ones for a seed; all of them when they are asked for."""
    if os.environ.get("FXPRESS_HOSTILE") == "all" or len(cases) <= count:
        return list(cases)
    return random.Random(seed).sample(cases, count)
