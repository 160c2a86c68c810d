"""Captures for which Dynamo generates no code: it would three times, and nobody reads it."""

from __future__ import annotations

import contextlib
import functools
import logging
from typing import Any

from torch._dynamo.output_graph import OutputGraph, graph_code_log
from torch.fx import Graph

from fxpress._base.replacement import Replacement
from fxpress._torch.capture import traces_are_written


@functools.cache
def _nothing() -> Any:
    """Return the code of a graph without nodes."""
    graph = Graph()
    graph.output(None)
    return graph.python_code("self")


def _compile(original: Any, self: OutputGraph, *args: Any, **kwargs: Any) -> Any:
    """Make a module of the graph, which has no code yet, and hand it to the backend."""
    graph = self.graph
    vars(graph)["python_code"] = lambda *_, **__: _nothing()
    try:
        return original(self, *args, **kwargs)
    finally:
        vars(graph).pop("python_code", None)


_compilation = Replacement(OutputGraph, "compile_and_call_fx_graph", _compile)


def unwritten_code() -> contextlib.AbstractContextManager[None]:
    """Return a block in which this thread's captures give modules that have no code of their graph.

    Whoever captures has to generate it, or to make another module of the graph. Where a log shows
    the code, it is generated all the same.
    """
    if graph_code_log.isEnabledFor(logging.DEBUG) or traces_are_written():
        return contextlib.nullcontext()
    return _compilation.block()
