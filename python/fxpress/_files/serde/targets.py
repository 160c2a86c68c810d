"""Find the operators, functions and classes that a file names, without running code."""

from __future__ import annotations

import inspect
import math
import operator
import traceback
import types
from typing import Any

import torch

from fxpress._base.errors import InternalError, UnsupportedError, is_about_input, printable_error
from fxpress._files.format.torch_facts import refusal
from fxpress._files.serde import operators
from fxpress._files.serde.damage import RefusedOperatorError, UnknownNameError
from fxpress._files.serde.limits import LimitError
from fxpress._torch import fx as torch_fx
from fxpress._torch import serde as compat

_FUNCTIONS = {
    operators.operator_name(each): each
    for each in (*compat.SYM_OPS, *compat.FURTHER_SYM_OPS, *compat.allowed_functions())
}
_UNREGISTERED = (
    "We failed to resolve {} to an operator. If it's a custom op/custom triton op, this is usually "
    "because the custom op is not registered when deserializing. Please import the custom op to "
    "register it before deserializing. Otherwise, please file an issue on github."
    " Unsupported target type for node."
)


def _operator(text: str) -> Any:
    """Return the operator with a name such as "torch.ops.aten.add.Tensor", or None."""
    match text.split("."):
        case ["torch", "ops", "higher_order", name]:
            found = getattr(torch.ops.higher_order, name, None)
        case ["torch", "ops", namespace, name, overload]:
            if not compat.schemas_of_operator(f"{namespace}::{name}"):
                return None  # torch.ops would cache the failed look-up
            packet = getattr(getattr(torch.ops, namespace), name, None)
            found = getattr(packet, overload, None)
        case _:
            return None
    known = (torch_fx.OpOverload, torch_fx.HigherOrderOperator)
    return found if isinstance(found, known) else None


def _extension(text: str) -> Any:
    namespace, _, name = text.removeprefix("#").partition(":")
    handler = compat.EXTENSION_NAMESPACES.get(namespace)
    if handler is None:
        text = f"no extension is registered for the namespace {namespace!r}"
        raise UnknownNameError(text, f"#{namespace}:{name}")
    return handler.from_op_name(name)


def find_target(text: str) -> Any:
    """Return the operator or function that a file names, or raise UnknownNameError."""
    if text.startswith("#"):
        return _extension(text)
    found = _FUNCTIONS.get(text)
    if found is None:
        found = _operator(text)
    if found is None:
        raise UnknownNameError(_UNREGISTERED.format(text), text)
    return found


def find_allowed(text: str, allowed: frozenset[str]) -> Any:
    """Return `find_target(text)` if a file may call it; otherwise raise RefusedOperatorError."""
    found = find_target(text)
    is_torchs = isinstance(found, torch_fx.HigherOrderOperator) and compat.is_of_torch(found)
    reason = refusal(text, allowed, is_torchs=is_torchs)
    if reason is not None:
        raise RefusedOperatorError(text, reason)
    return found


def describe_target(target: Any) -> tuple[Any, operators.Described]:
    """Return (target, description) for the native code that reads nodes."""
    if not callable(target):
        raise compat.SerializeError(_UNREGISTERED.format(target))
    described = operators.describe_operator(target)
    if described[0] is operators.Kind.SPECIAL:
        raise operators.UnsupportedProgramError(
            f"deserialize nyi for {operators.operator_name(target)}"
        )
    return target, described


def _member(owner: Any, name: str) -> Any:
    """Return the member of a module or class, without running code; None if it is missing."""
    if isinstance(owner, types.ModuleType):
        found = vars(owner).get(name)
        is_elsewhere = isinstance(found, types.ModuleType) and not compat.is_torchs(found)
        return None if is_elsewhere else found
    if isinstance(owner, type):
        found = inspect.getattr_static(owner, name, None)
        return found.__func__ if isinstance(found, staticmethod) else found
    return None


def source_function(text: str) -> Any:
    """Return the function that an entry of "source_fn_stack" names, or an unknown entry itself."""
    if text in _FUNCTIONS:
        return _FUNCTIONS[text]
    if text.startswith("#"):
        return _extension(text)
    if (found := _operator(text)) is not None:
        return found
    first, *names = text.split(".")
    found = {"torch": torch, "math": math, "_operator": operator}.get(first)
    for name in names:
        found = _member(found, name)
        if found is None:
            return text
    return text if found is None else found


class _ReadingError(compat.SerializeError):
    """A node could not be read; the message contains the node."""


def reading_failed(node: Any, error: Exception) -> None:
    """Raise an exception that names the schema node at which reading failed with `error`."""
    # A `_ReadingError` of a nested graph names its node already.
    unchanged = (UnsupportedError, InternalError, RefusedOperatorError, _ReadingError)
    if isinstance(error, unchanged) or not is_about_input(error):
        raise error
    if isinstance(error, LimitError):
        raise LimitError(
            error.limit, f"{error.place}, in a node of {node.target[:80]!r}"
        ) from error
    text = "".join(traceback.format_exception(error))
    raise _ReadingError(f"Failed deserializing node {node}\n Original exception {text}") from (
        printable_error(error)
    )
