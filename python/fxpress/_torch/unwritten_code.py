"""Captures for which Dynamo generates no code: it would three times, and nobody reads it."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterator
from typing import Any

from torch._dynamo.output_graph import OutputGraph, graph_code_log
from torch.fx import Graph

from fxpress._torch.capture import traces_are_written

_METHOD = "compile_and_call_fx_graph"


class _Here(threading.local):
    captures = 0  # the open blocks of this thread


_here = _Here()
_blocks = 0  # the open blocks of all threads
_lock = threading.Lock()


def _after_fork() -> None:
    """In a child: a thread of its parent may hold the lock, or have blocks that do not end."""
    global _blocks, _lock
    _lock = threading.Lock()
    _blocks = _here.captures
    if not _blocks:
        _restore()


os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def _nothing() -> Any:
    """Return the code of a graph without nodes."""
    graph = Graph()
    graph.output(None)
    return graph.python_code("self")


def _compile(self: OutputGraph, *args: Any, **kwargs: Any) -> Any:
    """Make a module of the graph, which has no code yet, and hand it to the backend."""
    if not _here.captures:
        return _original(self, *args, **kwargs)
    graph = self.graph
    vars(graph)["python_code"] = lambda *_, **__: _nothing()
    try:
        return _original(self, *args, **kwargs)
    finally:
        vars(graph).pop("python_code", None)


_original: Any = None  # what `_compile` stands in for while a block is open


def _replace() -> None:
    global _original
    if vars(OutputGraph)[_METHOD] is _compile:
        return  # somebody who replaced it in an earlier block has put it back
    _original = vars(OutputGraph)[_METHOD]
    setattr(OutputGraph, _METHOD, functools.update_wrapper(_compile, _original))


def _restore() -> None:
    if vars(OutputGraph)[_METHOD] is _compile:
        setattr(OutputGraph, _METHOD, _original)


@contextlib.contextmanager
def unwritten_code() -> Iterator[None]:
    """Return a block in which this thread's captures give modules that have no code of their graph.

    Whoever captures has to generate it, or to make another module of the graph. Where a log shows
    the code, it is generated all the same.
    """
    global _blocks
    if graph_code_log.isEnabledFor(logging.DEBUG) or traces_are_written():
        yield
        return
    with _lock:
        if not _blocks:
            _replace()
        _blocks += 1
    _here.captures += 1
    try:
        yield
    finally:
        _here.captures -= 1
        with _lock:
            _blocks -= 1
            if not _blocks:
                _restore()
