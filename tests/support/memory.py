"""What calls leave behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable


def blocks_left(
    repeats: int, call: Callable[[], object], collect: Callable[[], object] = gc.collect
) -> int:
    """How many blocks of Python's memory more are in use after some calls than before them."""
    collect()
    before = sys.getallocatedblocks()
    for _ in range(repeats):
        call()
    collect()
    return sys.getallocatedblocks() - before
