"""Tell Python's garbage collector that what was made is there to stay."""

from __future__ import annotations

import gc

_MANY = 20_000  # young objects: fewer are looked at in no time


def make_old() -> None:
    """Let the collector count all objects as old.

    The first collection after a pause would otherwise look at millions of new objects, and the next
    ones once more, although none of them is garbage: a fifth of the time. What is garbage by now is
    found by the next full collection.

    Where the process keeps objects from the collector with `gc.freeze`, nothing is done: they would
    not be kept from it any more.
    """
    if gc.get_count()[0] > _MANY and gc.get_freeze_count() == 0:
        gc.freeze()
        gc.unfreeze()
