"""What calls leave behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def collect_all() -> None:
    """Until nothing is left: one collection frees what C++ holds, the next what only that held."""
    while gc.collect():
        pass


def check_no_blocks_leak(
    call: Callable[[], object],
    calls: int = 50,
    *,
    kept: float = 0.9,  # a leak of one for each call, less what a cache lets go of
    collect: Callable[[], object] = collect_all,
) -> None:
    """Fail if each of several rounds of calls leaves `kept` blocks of Python's memory or more
    for every call. The first round warms caches up; those of Python's, torch's and pytest's grow
    now and then in a later one too, but a leak is there in each of them."""

    def left() -> float:
        collect()
        before = sys.getallocatedblocks()
        for _ in range(calls):
            call()
        collect()
        return (sys.getallocatedblocks() - before) / calls

    left()
    rounds = []
    for _ in range(4):
        rounds.append(left())
        if rounds[-1] < kept:
            return
    raise AssertionError(f"{min(rounds):g} blocks and more stay for each call: {rounds}")
