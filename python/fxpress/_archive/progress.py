"""Progress bars for what takes long."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_DELAY = 2.0  # seconds: what is faster shows no bar


@contextmanager
def progress_bar(action: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr, when that is a terminal and tqdm is installed.

    Args:
        action: what is done, for the bar.
        total: bytes.

    Yields:
        What is called with the bytes done since the last call.
    """
    make = _bar_class() if total != 0 and _is_terminal() else None
    if make is None:
        yield None
        return
    with make(desc=action, total=total, unit="B", unit_scale=True, delay=_DELAY) as bar:
        yield lambda count: bar.update(count) and None


def _is_terminal() -> bool:
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and isatty()


@functools.cache
def _bar_class() -> Any:
    """A tqdm of our own; None when it is not installed.

    tqdm's own lock is shared with the children of forks: one that is killed while it holds it
    would stop its parent for good. A monitor thread would take that lock too.
    """
    try:
        from tqdm import tqdm
    except ImportError:
        return None

    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0

    Bar.set_lock(threading.RLock())
    os.register_at_fork(after_in_child=lambda: Bar.set_lock(threading.RLock()))
    return Bar
