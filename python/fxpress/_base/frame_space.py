"""Make space for the frames of nested calls.

CPython from 3.11 on keeps frames in chunks of 16 KiB. A call that finds its chunk full maps another
chunk, and its return unmaps it: two system calls and a page fault for each call of a loop that runs
at such a border. Tracing is many calls deep and full of loops: a tenth of its time goes there.
A frame that is declared to be large makes space: its chunk is twice its size, and the other half
takes the frames of many hundred calls.
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
    """Return whether this thread runs a function that was called with space."""
    return _state.has_space


def call_with_space(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function and return its result, after making space in a thread that has none yet."""
    if _state.has_space:
        return function(*args, **kwargs)
    _state.has_space = True
    try:
        return _call_in_large_frame(function, *args, **kwargs)
    finally:
        _state.has_space = False


def with_space(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that calls the given one with space."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return call_with_space(function, *args, **kwargs)

    return call
