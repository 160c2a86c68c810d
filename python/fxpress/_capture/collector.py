"""Cyclic garbage while Dynamo traces."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

# Young objects that the collector waits for. Nearly all that a trace makes lives until the graph
# is done, so that a look at it is in vain; some of it is garbage, so that never to look is no way.
_YOUNG = 100_000

_lock = threading.Lock()
_blocks = 0  # in force now
_before: tuple[int, int, int] = (0, 0, 0)  # the thresholds outside of all blocks


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """A ``with`` block in which the collector runs rarely, in all threads; blocks may overlap."""
    global _blocks, _before
    with _lock:
        if _blocks == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < _YOUNG:  # 0 is no collections at all
                gc.set_threshold(_YOUNG, *_before[1:])
        _blocks += 1
    try:
        yield
    finally:
        with _lock:
            _blocks -= 1
            if _blocks == 0 and gc.get_threshold() == (_YOUNG, *_before[1:]):
                gc.set_threshold(*_before)
