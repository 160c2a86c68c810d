"""Make room for the frames of nested calls.

CPython from 3.11 on keeps frames in chunks of 16 KiB. A call that finds its chunk full maps another
chunk, and its return unmaps it: two system calls and a page fault for each call of a loop that runs
at such a border. Tracing is many calls deep and full of loops: a tenth of its time goes there.
A frame that is declared to be large makes room: its chunk is twice its size, and the other half
takes the frames of many hundred calls.
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

# The size of a chunk is a power of two: a frame of a little more than 256 KiB gets a chunk of 512
# KiB. A frame object in a traceback has the same size, but its memory is not touched.
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
    """Return whether this thread runs a function that was called with room."""
    return _state.has_room


def call_with_room(function: Callable[_P, _R], /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
    """Call a function and return its result, after making room in a thread that has none yet."""
    if _state.has_room:
        return function(*args, **kwargs)
    _state.has_room = True
    try:
        return _call_in_large_frame(function, *args, **kwargs)
    finally:
        _state.has_room = False


def with_room(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Return a function that calls the given one with room."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        return call_with_room(function, *args, **kwargs)

    return call
