"""Progress bars for operations that take long."""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_DELAY = 2.0  # seconds before a bar is shown


@contextmanager
def progress_bar(action: str, total: int) -> Iterator[Callable[[int], None] | None]:
    """Show a bar on stderr, when stderr is a terminal and tqdm is installed.

    Args:
        action: the text for the bar.
        total: the number of bytes.

    Yields:
        A function to call with the bytes done since the last call; None when there is no bar.
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
    """Return a subclass of tqdm; None when tqdm is not installed.

    tqdm's own lock is shared with forked children: a child that is killed while it holds the lock
    would block its parent forever. A monitor thread would take the lock too.
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
