"""Room for the frames of nested calls.

CPython from 3.11 on keeps frames in chunks of 16 KiB. A call that finds its chunk full maps another
one, and its return unmaps it: two system calls and a page fault for each call of a loop that runs
at such a border. Tracing is many calls deep and full of loops: a tenth of its time goes there.
Below a frame that is said to be large there is room: its chunk is twice its size, and the other
half takes the frames of many hundred calls.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FunctionType
from typing import ParamSpec, TypeVar

_P = ParamSpec("_P")
_R = TypeVar("_R")

# Chunks have powers of two bytes: with a little more than 256 KiB the frame gets one of 512 KiB. It
# has that size, untouched, as an object too, in tracebacks.
_SLOTS = (1 << 18) // 8


def _call(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    return function(*args, **kwargs)


_call_in_large_frame = _call
if sys.version_info >= (3, 11):
    _call_in_large_frame = FunctionType(_call.__code__.replace(co_stacksize=_SLOTS), globals())


class _State(threading.local):
    has_room = False


_state = _State()


def has_room() -> bool:
    """Whether this thread runs a function that was called with room."""
    return _state.has_room


def call_with_room(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Calls a function, and makes room first in a thread that has none yet."""
    if _state.has_room:
        return function(*args, **kwargs)
    _state.has_room = True
    try:
        return _call_in_large_frame(function, *args, **kwargs)
    finally:
        _state.has_room = False


def with_room(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The function that calls the given one with room."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return call_with_room(function, *args, **kwargs)

    return call
