"""The functions that the native engine calls in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node
from torch.fx import traceback as fx_traceback

from fxpress._torch import fx as torch_fx

_TLPARSE = (
    "\nUse tlparse to see full graph. "
    "(https://github.com/pytorch/tlparse?tab=readme-ov-file#tlparse-parse-structured-pt2-logs)"
)


def annotate(error: Exception, node: Node, module: torch.nn.Module) -> Exception:
    """Name the node in an exception, as `Interpreter.run` does, and return the one to raise."""
    message = f"While executing {node.format_node()}"
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
    """Return the default of a placeholder that got no argument; RuntimeError without a default."""
    if len(node.args) > 0:
        return node.args[0]
    raise RuntimeError(
        f"Expected positional argument for parameter {node.target}, but one was not passed in!"
    ) from StopIteration()


def call_with_meta(
    node: Node, callee: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Call a function whose traced nodes inherit the meta of `node`, and return its result."""
    with fx_traceback.set_current_meta(node, "Interpreter_Interpreter"):
        return callee(*args, **kwargs)
