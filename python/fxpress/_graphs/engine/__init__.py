"""Runs graphs natively: stands in for `torch.fx.Interpreter`.

A graph is compiled into a plan at its first run, see `csrc/engine`. The plan lives in the graph's
`__dict__`, is checked against the graph at each run, and is dropped by copies and pickles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph

from fxpress._graphs.engine import callbacks
from fxpress._torch.aten import extension as _aten_ext
from fxpress._torch.engine import ENGINE_NAMES, engine_symbols

__all__ = ["next_call", "plan_info", "register_forward", "run", "set_next_call"]

_aten_ext.initialize_engine(
    engine_symbols(
        annotate=callbacks.annotate,
        call_with_meta=callbacks.call_with_meta,
        fetch_attr=callbacks.fetch_attr,
        int_operators=_aten_ext.INT_OPERATORS,
        missing_argument=callbacks.missing_argument,
    ),
    ENGINE_NAMES,
)

# run(module, graph, args): the output of `graph`, whose `get_attr` and `call_module` targets are
# looked up in `module`. Stands in for
# `torch.fx.Interpreter(module, graph=graph).run(*args, enable_io_processing=False)` and raises what
# that raises: a node's exception, with the node and its stack trace in the message. A list of
# arguments is emptied, so that they can be freed as soon as they have been used.
run: Callable[[torch.nn.Module, Graph, tuple[Any, ...] | list[Any]], Any] = _aten_ext.run


def register_forward(
    function: Callable[..., Any], *, dispatches: bool = False, counts: bool = False
) -> None:
    """Let modules whose class has this very `forward` be inlined into the plans of their callers.

    Args:
        function: the function in the class's `__dict__`. It does what torch's
            `InterpreterModule.forward` does with `graph`, `graph_module`, `arg_names` and
            `_run_with_interpreter` of the instance's `__dict__`.
        dispatches: it is the `forward` of a dispatcher instead, which does what torch's
            `InterpreterModuleDispatcher.forward` does with `_call_modules` and `_num_calls`.
        counts: a dispatcher's forward that reads its count with `next_call` and writes it with
            `set_next_call`, so that threads don't disturb one another even below hooks.
    """
    _aten_ext.register_forward(function, dispatches, counts)


def plan_info(graph: Graph) -> dict[str, Any] | None:
    """Sizes of the plan that a graph has now: for tests and benchmarks; None without one."""
    return _aten_ext.plan_info(graph)


def next_call(dispatcher: torch.nn.Module) -> int:
    """The index of a dispatcher's next call: the run's own count; outside of runs `_num_calls`."""
    return _aten_ext.next_call(dispatcher)


def set_next_call(dispatcher: torch.nn.Module, index: int) -> None:
    """Set the index of a dispatcher's next call, where `next_call` reads it."""
    _aten_ext.set_next_call(dispatcher, index)
