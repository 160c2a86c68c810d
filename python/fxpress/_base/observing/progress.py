"""Progress of operations that take long: bars, or calls of the caller's function."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

# What callers give as `progress`: True, False, a function of (done, total, what), a bar of tqdm, a
# `rich.progress.Progress`, or None.
Progress: TypeAlias = bool | Callable[[int, int, str], object] | Any | None
Report: TypeAlias = Callable[[int], None]  # takes what was done since the last call

_DELAY = 2.0  # seconds before a bar that nobody asked for is shown


def check_progress(progress: Progress) -> None:
    """Raise an error unless the argument is something that can show progress.

    Raises:
        ImportError: it is True, and neither tqdm nor rich is installed.
        TypeError: it is something else.
    """
    if progress is True:
        if _bar_class() is None and _rich_class() is None:
            raise ImportError(
                "progress=True needs tqdm or rich: pip install 'fxpress[progress]' brings tqdm"
            )
        return
    known = progress is None or progress is False or _is_tqdm(progress) or _is_rich(progress)
    if not known and (isinstance(progress, type) or not callable(progress)):
        name = progress.__name__ if isinstance(progress, type) else type(progress).__name__
        kind = f"the class {name}" if isinstance(progress, type) else f"a {name}"
        raise TypeError(
            "progress is a bool, a function of (done, total, what), a bar of tqdm or a "
            f"rich.progress.Progress, not {kind}"
        )


_nothing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


def reporting(
    progress: Progress, what: str, total: int, unit: str = "bytes"
) -> contextlib.AbstractContextManager[Report | None]:
    """Return a block in which it is shown how far an operation is.

    Args:
        progress: where, after `check_progress`. None: a bar on stderr after two seconds, when
            stderr is a terminal and tqdm is installed.
        what: a word for what is done, such as "saving".
        total: how much there is to do; an estimate.
        unit: what is counted, in the plural.

    Returns:
        A block, which has a function to call with what was done since the last call; None when
        nobody watches, or there is nothing to do. A block that ends well is reported as done.
    """
    shown = _shown(progress, what, total, unit)
    return _nothing if shown is None else _metered(shown, total)


@contextlib.contextmanager
def _metered(shown: contextlib.AbstractContextManager[Report], total: int) -> Iterator[Report]:
    with shown as report:
        meter = _Meter(report, total)
        try:
            yield meter.add
        except BaseException:
            if meter.raised is not None:  # an OSError may have got the name of a file meanwhile
                raise meter.raised from None
            raise
        meter.finish()


def _shown(
    progress: Progress, what: str, total: int, unit: str
) -> contextlib.AbstractContextManager[Report] | None:
    """Return a block in which reports are shown; None when nobody watches."""
    if progress is False or total == 0:
        return None
    if progress is None:
        make = _bar_class() if _is_terminal() else None
        return None if make is None else _tqdm(make, what, total, unit, delay=_DELAY)
    if progress is True:
        make = _bar_class()
        return _own_rich(what, total) if make is None else _tqdm(make, what, total, unit)
    if _is_tqdm(progress):
        return _given_tqdm(progress, what, total, unit)
    if _is_rich(progress):
        return _given_rich(progress, what, total)
    return _function(progress, what, total, unit)


class _Meter:
    """Keeps what is reported within the total, which may be an estimate."""

    def __init__(self, report: Report, total: int) -> None:
        self._report = report
        self._left = total
        self.raised: BaseException | None = None  # by the report

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
def _function(given: Any, what: str, total: int, unit: str) -> Iterator[Report]:
    done = 0
    text = f"{what}: {unit}"

    def report(count: int) -> None:
        nonlocal done
        done += count
        given(done, total, text)

    given(0, total, text)
    yield report


@contextlib.contextmanager
def _tqdm(make: Any, what: str, total: int, unit: str, delay: float = 0.0) -> Iterator[Report]:
    with make(desc=what, total=total, delay=delay, **_tqdm_unit(unit)) as bar:
        yield lambda count: bar.update(count) and None


def _tqdm_unit(unit: str) -> dict[str, Any]:
    if unit == "bytes":
        return {"unit": "B", "unit_scale": True}
    return {"unit": f" {unit}", "unit_scale": False}


@contextlib.contextmanager
def _given_tqdm(bar: Any, what: str, total: int, unit: str) -> Iterator[Report]:
    """A bar of the caller's begins anew, and is left open."""
    bar.reset(total=total)
    if not bar.desc:
        bar.set_description_str(what, refresh=False)
    if bar.unit == "it":
        for name, value in _tqdm_unit(unit).items():
            setattr(bar, name, value)
    yield lambda count: bar.update(count) and None
    bar.refresh()


@contextlib.contextmanager
def _given_rich(progress: Any, what: str, total: int) -> Iterator[Report]:
    task = progress.add_task(what, total=total)
    yield lambda count: progress.advance(task, count)


@contextlib.contextmanager
def _own_rich(what: str, total: int) -> Iterator[Report]:
    from rich.console import Console

    make: Any = _rich_class()
    with (
        make(console=Console(stderr=True)) as progress,
        _given_rich(progress, what, total) as shown,
    ):
        yield shown


def _is_terminal() -> bool:
    isatty = getattr(sys.stderr, "isatty", None)
    return isatty is not None and isatty()


def _is_tqdm(value: Any) -> bool:
    return _is_of("tqdm.std", "tqdm", value)


def _is_rich(value: Any) -> bool:
    return _is_of("rich.progress", "Progress", value)


def _is_of(module: str, name: str, value: Any) -> bool:
    """Return whether a value is of a class of a module, which is not imported for the answer."""
    found = getattr(sys.modules.get(module), name, None)
    return isinstance(found, type) and isinstance(value, found)


def _rich_class() -> Any:
    """Return `rich.progress.Progress`; None when rich is not installed."""
    try:
        from rich.progress import Progress as Bars
    except ImportError:
        return None
    return Bars


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
