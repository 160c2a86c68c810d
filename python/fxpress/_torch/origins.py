"""Which functions are torch's alone."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket

HOME = os.path.join(os.path.dirname(torch.__file__), "")
BUILTIN = frozenset({"aten", "prim", "prims"})  # namespaces of torch's own operators
_PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(...), range, slice}
    | {torch.dtype, torch.layout, torch.memory_format, torch.device}
)
_CONTAINERS = (tuple, list, set, frozenset)


def is_torchs(function: Any) -> bool:
    """Return whether a function is torch's alone: its code, and all that it holds.

    What a function says of itself is not asked, because `functools.wraps` copies that.
    """
    todo, seen = [function], {}
    while todo:
        value = todo.pop()
        if id(value) not in seen:
            seen[id(value)] = value  # keeps it, so that its address is not another's
            parts = _parts(value)
            if parts is None:
                return False
            todo += parts
    return True


def _parts(value: Any) -> Iterable[Any] | None:
    """Return what a value holds that may run; None for a value that is not torch's."""
    kind = type(value)
    if kind in _PLAIN:
        return ()
    if kind in _CONTAINERS:
        return tuple(value)
    if kind is dict:
        return (*value, *value.values())
    if kind is types.FunctionType:
        return _parts_of_function(value)
    if kind is functools.partial:
        return (value.func, *value.args, *value.keywords.values())
    if kind is types.MethodType:
        return (value.__func__, value.__self__)
    if kind is types.BuiltinFunctionType:
        return _parts_of_native(value)
    if isinstance(value, type):
        return () if _is_harmless(value) else None
    if isinstance(value, (OpOverload, OpOverloadPacket)):
        return () if _namespace(value) in BUILTIN else None
    if isinstance(value, (enum.Enum, inspect.Signature)):
        return (kind,)
    # A module has state, and is there to have it.
    if not _is_known(kind, ()) or isinstance(value, torch.nn.Module):
        return None
    if hasattr(value, "__dict__"):
        return tuple(vars(value).values())
    return None if callable(value) else ()


def _parts_of_function(function: types.FunctionType) -> list[Any] | None:
    if not function.__code__.co_filename.startswith(HOME):
        return None
    held = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for cell in function.__closure__ or ():
        try:
            held.append(cell.cell_contents)
        except ValueError:  # nothing has been put into it
            continue
    return held


def _parts_of_native(function: types.BuiltinFunctionType) -> tuple[Any, ...] | None:
    """Return what a function of C or C++ is bound to, unless that is a module."""
    owner = function.__self__
    if owner is not None and not isinstance(owner, types.ModuleType):
        return (owner,)
    name = getattr(function, "__module__", None) if owner is None else owner.__name__
    top = str(name).partition(".")[0]
    return () if top == "torch" or top in sys.stdlib_module_names else None


def _is_harmless(cls: type) -> bool:
    """Return whether a class is one of torch's or Python's, or a plain named tuple."""
    is_named_tuple = cls.__bases__ == (tuple,) and hasattr(cls, "_fields")
    return is_named_tuple or _is_known(cls, sys.stdlib_module_names)


def _is_known(cls: type, others: Iterable[str]) -> bool:
    """Return whether a class stands where it says, in torch or another of the packages given."""
    name = str(cls.__module__)
    found: Any = sys.modules.get(name)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    top = name.partition(".")[0]
    return found is cls and (top == "torch" or top in others)


def _namespace(operator: Any) -> str:
    if isinstance(operator, OpOverload):
        return str(operator.namespace)
    return str(operator._qualified_op_name).partition("::")[0]
