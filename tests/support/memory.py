"""What calls leave behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def collect_all() -> None:
    """Until nothing is left: one collection frees what C++ holds, the next what only that held."""
    while gc.collect():
        pass


def blocks_left(
    repeats: int, call: Callable[[], object], collect: Callable[[], object] = collect_all
) -> int:
    """How many blocks of Python's memory more are in use after some calls than before them."""
    collect()
    before = sys.getallocatedblocks()
    for _ in range(repeats):
        call()
    collect()
    return sys.getallocatedblocks() - before
