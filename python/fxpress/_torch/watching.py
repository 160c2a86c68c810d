"""Report calls of operations and their phases to watchers.

A watcher is a profile (`fxpress.profile`), the logger `fxpress.operations`, or torch's profiler.
Without watchers, a call of an operation evaluates three conditions, and a phase evaluates one.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable
from typing import ParamSpec, Protocol, TypeVar

import torch

from fxpress._base.observing.event import Event
from fxpress._base.observing.text import duration_text, sizes_text
from fxpress._base.signatures import expand_aliases

# Whether torch's profiler runs in this thread; False for a torch without this function.
profiler_is_on: Callable[[], bool] = getattr(torch.autograd, "_profiler_enabled", lambda: False)


def range_of(name: str) -> torch.profiler.record_function | None:
    """Return torch's `record_function`; None if the profiler is off or a torch mode is active."""
    if not profiler_is_on():
        return None
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return None
    return torch.profiler.record_function(name)


_P = ParamSpec("_P")
_R = TypeVar("_R")

log = logging.getLogger("fxpress.operations")


class Watcher(Protocol):
    """Receives the events of all threads while it is in `watchers`."""

    def take(self, event: Event) -> None:
        """Receive an event that has ended."""


# The list is changed only by `append` and `remove`, which are atomic for other threads.
watchers: list[Watcher] = []


class _Here(threading.local):
    event: Event | None = None  # the innermost watched event that runs in this thread


_here = _Here()
_numbers = itertools.count()
_nothing = contextlib.nullcontext()
_informs = log.isEnabledFor
_INFO = logging.INFO


class _Watched:
    """A `with` block that reports a call of an operation, or a phase, as an event when it ends."""

    def __init__(self, name: str, is_operation: bool) -> None:
        thread = threading.current_thread()
        self.event = Event(
            name,
            is_operation,
            _here.event,
            next(_numbers),
            thread.native_id or 0,
            thread.name,
            0.0,
            0.0,
        )
        self._watchers = tuple(watchers)
        self._range = range_of(f"fxpress::{self.event.path}")

    def __enter__(self) -> Event:
        event = self.event
        if self._range is not None:
            self._range.__enter__()
        event.processor_start = time.thread_time()
        event.start = time.perf_counter()
        _here.event = event  # last: an interrupted call leaves `_here` unchanged
        return event

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        event = self.event
        event.wall = time.perf_counter() - event.start
        event.processor = time.thread_time() - event.processor_start
        event.error = None if kind is None else kind.__name__
        _here.event = event.parent
        if self._range is not None:
            self._range.__exit__(kind, *error)
        for watcher in self._watchers:
            if watcher in watchers:  # not removed while the block ran
                watcher.take(event)
        if not event.is_operation and log.isEnabledFor(logging.DEBUG):
            log.debug("fxpress.%s in %s", event.path, duration_text(event.wall))


def phase(name: str) -> contextlib.AbstractContextManager[object]:
    """Return a `with` block that reports a phase of the running operation; `name` has no dots."""
    return _nothing if _here.event is None else _Watched(name, False)


def operation(
    name: str, sizes: Callable[..., dict[str, int]] | None = None
) -> Callable[[Callable[_P, _R]], Callable[_P, _R]]:
    """Return a decorator that reports calls to watchers; `sizes` gets the result and arguments."""

    def decorate(function: Callable[_P, _R]) -> Callable[_P, _R]:
        expand_aliases(function)

        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            if not (watchers or _informs(_INFO) or profiler_is_on()):
                return function(*args, **kwargs)
            block = _Watched(name, True)
            try:
                with block:
                    made = function(*args, **kwargs)
                if sizes is not None:
                    with contextlib.suppress(Exception):  # `sizes` may fail for unusual arguments
                        block.event.sizes = sizes(made, *args, **kwargs)
                return made
            finally:
                _log_event(block.event)

        return call

    return decorate


def _log_event(event: Event) -> None:
    """Log a call that has ended: outermost calls at INFO, nested calls at DEBUG."""
    level = logging.INFO if event.parent is None else logging.DEBUG
    if not log.isEnabledFor(level):
        return
    time_taken = duration_text(event.wall)
    if event.error is not None:
        log.log(level, "fxpress.%s: %s after %s", event.name, event.error, time_taken)
    elif event.sizes:
        log.log(level, "fxpress.%s: %s in %s", event.name, sizes_text(event.sizes), time_taken)
    else:
        log.log(level, "fxpress.%s in %s", event.name, time_taken)
