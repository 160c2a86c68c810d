"""Reserve stack space for the frames of nested calls.

CPython from 3.11 on stores frames in chunks of 16 KiB. If a frame does not fit into the last chunk,
the call maps a new chunk, and the return unmaps it. This costs two system calls and a page fault,
which a loop may repeat. Without `call_with_space`, tracing spends 10% of its time on this.

`call_with_space` calls a function in a frame of 256 KiB. CPython allocates a chunk of 512 KiB for
this frame, and the second half of the chunk has space for the frames of hundreds of nested calls.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from fxpress._base.interpreter import in_large_frame

_P = ParamSpec("_P")
_R = TypeVar("_R")


def _call(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    return function(*args, **kwargs)


_call_in_large_frame = in_large_frame(_call)


class _State(threading.local):
    has_space = False


_state = _State()


def has_space() -> bool:
    """Return whether this thread runs in `call_with_space`."""
    return _state.has_space


def call_with_space(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function in a large frame, unless the thread has one already; return its result."""
    if _state.has_space:
        return function(*args, **kwargs)
    _state.has_space = True
    try:
        return _call_in_large_frame(function, *args, **kwargs)
    finally:
        _state.has_space = False


def with_space(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function so that `call_with_space` runs its calls."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return call_with_space(function, *args, **kwargs)

    return call
