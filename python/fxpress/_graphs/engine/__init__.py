"""Run graphs in C++. Stands in for `torch.fx.Interpreter`.

The first run compiles a graph into a plan (`csrc/engine`), and stores it in the graph's `__dict__`.
A later run compiles the graph again if it has changed. Copies and pickles have no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx import traceback as fx_traceback

from fxpress import _native
from fxpress._torch import aten
from fxpress._torch import fx as torch_fx
from fxpress._torch.native_tables import fx
from fxpress._torch.tables import engine_symbols

__all__ = ["next_call", "plan_info", "register_forward", "run", "set_next_call"]

_TLPARSE = (
    "\nUse tlparse to see full graph. "
    "(https://github.com/pytorch/tlparse?tab=readme-ov-file#tlparse-parse-structured-pt2-logs)"
)


def annotate(error: Exception, node: Node, module: torch.nn.Module) -> Exception:
    """Return the error that `Interpreter.run` raises for `error`: `node` is in the message."""
    try:
        message = f"While executing {node.format_node()}"
    except RecursionError:  # an argument is very deep, or contains itself
        message = f"While executing %{node.name}"
    message = f"{error.args[0]}\n\n{message}" if error.args else message
    message += f"\nOriginal traceback:\n{node.stack_trace}"
    torch_fx.log_interpreter_error(module, message)
    message += _TLPARSE
    error.args = (message, *error.args[1:])
    if not isinstance(error, KeyError):
        return error
    replacement = RuntimeError(*error.args)
    replacement.__cause__ = replacement.__context__ = error
    return replacement


def fetch_attr(module: torch.nn.Module, target: str) -> Any:
    """Return the attribute at a dotted path, as `Interpreter.fetch_attr` does."""
    if not isinstance(target, str):
        raise AssertionError(f"Expected target to be str, got {type(target)}")
    atoms = target.split(".")
    found: Any = module
    for i, atom in enumerate(atoms):
        if not hasattr(found, atom):
            raise RuntimeError(f"Node referenced nonexistent target {'.'.join(atoms[: i + 1])}")
        found = getattr(found, atom)
    return found


def missing_argument(node: Node) -> Any:
    """Return the default of a placeholder that gets no argument; RuntimeError without a default."""
    if len(node.args) > 0:
        return node.args[0]
    raise RuntimeError(
        f"Expected positional argument for parameter {node.target}, but one was not passed in!"
    ) from StopIteration()


def call_with_meta(
    node: Node, callee: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function for `node`. If a tracer is active, the nodes that it adds get `node.meta`."""
    with fx_traceback.set_current_meta(node, "Interpreter_Interpreter"):
        return callee(*args, **kwargs)


fx()
aten.initialize_engine(
    engine_symbols(
        annotate=annotate,
        call_with_meta=call_with_meta,
        fetch_attr=fetch_attr,
        int_operators=aten.INT_OPERATORS,
        missing_argument=missing_argument,
    ),
    _native.tables,
)

# run(module, graph, args) returns the output of `graph`; `get_attr` and `call_module` targets are
# looked up in `module`. Stands in for
# `torch.fx.Interpreter(module, graph=graph).run(*args, enable_io_processing=False)` and raises the
# same errors, with the node and its stack trace in the message. If `args` is a list, it is emptied,
# so that each argument is freed after its last use.
run: Callable[[torch.nn.Module, Graph, tuple[Any, ...] | list[Any]], Any] = aten.run

# register_forward(function, dispatches, counts): plans may inline modules whose `forward` is
# `function`. The function must be equivalent to InterpreterModule.forward or, if `dispatches` is
# True, to InterpreterModuleDispatcher.forward. If `counts` is True, the function must store the
# index of its next call with `set_next_call`, so that each thread has a separate count.
register_forward = aten.register_forward

# plan_info(graph) returns the sizes of a graph's plan, for tests and benchmarks; None: no plan.
plan_info = aten.plan_info

# next_call(dispatcher) returns the index of the dispatcher's next call: the number of its calls in
# the engine's current run, or `_num_calls` outside a run. set_next_call(dispatcher, index) sets it.
next_call, set_next_call = aten.next_call, aten.set_next_call
