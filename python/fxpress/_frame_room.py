"""Room for the frames of many nested calls.

CPython from 3.11 on keeps frames in chunks of 16 KiB: a call that finds its chunk full maps another
one, and its return unmaps it. A loop that happens to call across such a border pays two system
calls and a page fault for each call, and what traces a program, many calls deep, is full of loops:
some ten thousand times for a model of 64 blocks, a tenth of the time. So that is done below a frame
that is said to be large. The chunk it needs is as large again, and takes all frames behind it.
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

# Chunks have powers of two bytes: a frame of a MiB and a little gets two, of which it uses one.
_SLOTS = (1 << 20) // 8


def _call(function: Callable[_P, _R], *args: _P.args, **kwargs: _P.kwargs) -> _R:
    return function(*args, **kwargs)


_call_with_room = _call
if sys.version_info >= (3, 11):
    _call_with_room = FunctionType(_call.__code__.replace(co_stacksize=_SLOTS), globals())


class _State(threading.local):
    has_room = False


_state = _State()


def has_room() -> bool:
    """Whether this thread is inside of such a call."""
    return _state.has_room


def with_room(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """The same function, which makes room for its calls in a thread that has none yet."""

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if _state.has_room:
            return function(*args, **kwargs)
        _state.has_room = True
        try:
            return _call_with_room(function, *args, **kwargs)
        finally:
            _state.has_room = False

    return call
