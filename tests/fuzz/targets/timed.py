"""The cost of an input, independent of other work on the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

from sympy.core.cache import clear_cache


def promised(size: int) -> float:
    """The processor's seconds that a file of so many bytes may take."""
    return 2 + 10 * size / (1 << 20)


def check(read: Callable[[], None], seconds: float) -> None:
    """AssertionError when a call takes more of the processor, and again when it is repeated.

    A process also does what is not the input's, now and then: it collects garbage, say.
    """
    spent = [_spent(read)]
    while spent[-1] > seconds and len(spent) < 3:
        clear_cache()  # sympy's: what it remembers costs nothing
        spent.append(_spent(read))
    assert min(spent) <= seconds, f"{spent} seconds, and not {seconds:.1f}"


def _spent(read: Callable[[], None]) -> float:
    before = time.process_time()
    read()
    return time.process_time() - before
