"""Show the progress of long operations in a bar, or report it to a function of the caller."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

# The argument `progress`. True: show a bar. False: show nothing. A function: call it with (done,
# total, what). None: show a bar if stderr is a terminal.
Progress: TypeAlias = bool | Callable[[int, int, str], object] | None
Report: TypeAlias = Callable[[int], None]  # called with the amount done since its last call

_DELAY = 2.0  # seconds before a bar is shown with `progress=None`
# Package of a progress bar -> the function to pass as `progress` instead of the bar.
_FUNCTIONS_OF_BARS = {
    "tqdm": "lambda done, total, what: bar.update(done - bar.n)",
    "rich": "lambda done, total, what: bar.update(task, completed=done, total=total)",
}


def check_progress(progress: Progress) -> None:
    """Raise ImportError if `progress` is True and tqdm is missing, TypeError for a wrong type."""
    if progress is True:
        if _bar_class() is None:
            raise ImportError("progress=True needs tqdm: pip install 'fxpress[progress]'")
        return
    is_function = callable(progress) and not isinstance(progress, type)
    if progress is None or progress is False or is_function:
        return
    shown = progress.__name__ if isinstance(progress, type) else type(progress).__name__
    found = f"the class {shown}" if isinstance(progress, type) else f"a {shown}"
    packages = {base.__module__.partition(".")[0] for base in type(progress).__mro__}
    remedy = "".join(
        f": for a bar of {package}, pass a callable: progress={function}"
        for package, function in _FUNCTIONS_OF_BARS.items()
        if package in packages
    )
    raise TypeError(
        f"progress must be a bool, a function of (done, total, what) or None, not {found}{remedy}"
    )


_nothing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def reporting(
    progress: Progress, what: str, total: int, unit: str = "bytes"
) -> contextlib.AbstractContextManager[Report | None]:
    """Return a context manager that yields a `Report`, or None if progress is not shown.

    `progress` has passed `check_progress`. `what` is a word such as "saving". `total` may be an
    estimate.
    """
    if progress is False or total == 0:
        return _nothing
    if callable(progress):
        return _metered(_called(progress, what, total, unit), total)
    make = _bar_class() if progress or _is_terminal() else None
    if make is None:
        return _nothing
    return _metered(_drawn(make, what, total, unit, 0.0 if progress else _DELAY), total)


@contextlib.contextmanager
def _metered(shown: contextlib.AbstractContextManager[Report], total: int) -> Iterator[Report]:
    with shown as report:
        meter = _Meter(report, total)
        try:
            yield meter.add
        except BaseException:
            if meter.raised is not None:  # the `with` block may have replaced this exception
                raise meter.raised from None
            raise
        meter.finish()


class _Meter:
    """Limits the sum of the reported amounts to the total, which may be an estimate."""

    def __init__(self, report: Report, total: int) -> None:
        self._report = report
        self._left = total
        self.raised: BaseException | None = None  # from the caller's function or the bar

    def add(self, count: int) -> None:
        count = min(count, self._left)
        if count > 0 and self.raised is None:
            self._left -= count
            try:
                self._report(count)
            except BaseException as error:
                self.raised = error
                raise

    def finish(self) -> None:
        self.add(self._left)


@contextlib.contextmanager
def _called(
    function: Callable[[int, int, str], object], what: str, total: int, unit: str
) -> Iterator[Report]:
    done = 0
    text = f"{what}: {unit}"

    def report(count: int) -> None:
        nonlocal done
        done += count
        function(done, total, text)

    function(0, total, text)
    yield report


@contextlib.contextmanager
def _drawn(make: Any, what: str, total: int, unit: str, delay: float) -> Iterator[Report]:
    is_bytes = unit == "bytes"
    shown = "B" if is_bytes else f" {unit}"
    with make(desc=what, total=total, delay=delay, unit=shown, unit_scale=is_bytes) as bar:
        yield lambda count: bar.update(count) and None


def _is_terminal() -> bool:
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and isatty()


@functools.cache
def _bar_class() -> Any:
    """Return a subclass of tqdm; None when tqdm is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None

    # Forked children share tqdm's lock. A child that is killed while it holds the lock would block
    # all other processes, so each process gets a new lock.
    class Bar(tqdm):  # type: ignore[misc]
        monitor_interval = 0

    Bar.set_lock(threading.RLock())
    os.register_at_fork(after_in_child=lambda: Bar.set_lock(threading.RLock()))
    return Bar
