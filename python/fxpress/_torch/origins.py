"""Find functions that run only torch's code, and operators with kernels that users registered."""

from __future__ import annotations

import enum
import functools
import inspect
import os
import re
import sys
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import library
from torch._C import DispatchKey
from torch._library import simple_registry
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses import fake_impls

HOME = os.path.join(os.path.dirname(torch.__file__), "")
BUILTIN = frozenset({"aten", "prim", "prims"})  # namespaces of torch's own operators
_PLAIN = frozenset(
    {int, float, complex, bool, str, bytes, type(None), type(...), range, slice}
    | {torch.dtype, torch.layout, torch.memory_format, torch.device}
)
_CONTAINERS = (tuple, list, set, frozenset)


def is_torchs(function: Any) -> bool:
    """Return whether torch's code defines a function and all functions to which it refers."""
    # Attributes such as `__module__` are ignored, because `functools.wraps` copies them.
    todo, seen = [function], {}
    while todo:
        value = todo.pop()
        if id(value) not in seen:
            seen[id(value)] = value  # the reference keeps the address from being reused
            parts = _parts(value)
            if parts is None:
                return False
            todo += parts
    return True


def _parts(value: Any) -> Iterable[Any] | None:
    """Return the objects that a call of `value` may call; None if `value` is not torch's."""
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
        is_named_tuple = value.__bases__ == (tuple,) and hasattr(value, "_fields")
        return () if is_named_tuple or _is_known(value, sys.stdlib_module_names) else None
    if isinstance(value, (OpOverload, OpOverloadPacket)):
        return () if _namespace(value) in BUILTIN else None
    if isinstance(value, (enum.Enum, inspect.Signature)):
        return (kind,)
    # An nn.Module is refused, because its state may change.
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
        except ValueError:  # the cell is empty
            continue
    return held


def _parts_of_native(function: types.BuiltinFunctionType) -> tuple[Any, ...] | None:
    """Return objects that a C function is bound to; None if neither torch nor Python defines it."""
    owner = function.__self__
    if owner is not None and not isinstance(owner, types.ModuleType):
        return (owner,)
    name = getattr(function, "__module__", None) if owner is None else owner.__name__
    top = str(name).partition(".")[0]
    return () if top == "torch" or top in sys.stdlib_module_names else None


def _is_known(cls: type, others: Iterable[str]) -> bool:
    """Return whether torch or a package in `others` defines `cls` under its `__qualname__`."""
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


# A line of `_dispatch_dump` for a Python kernel: the kernel's dispatch key, and the file and line
# that created the kernel's `torch.library.Library`.
_KERNEL = re.compile(
    r"^(\w+)(?:\[alias\])?(?: \(inactive\))?: registered at (.+\.py):(\d+) ::", re.MULTILINE
)
_COMPOSITE = DispatchKey.CompositeImplicitAutograd.name
# If a kernel with one of these keys runs, the trace still has a node of the operator.
_RESULTS = frozenset(
    {"Meta", "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"}
)


@functools.cache
def _is_backend(key: str) -> bool:
    """Return whether the kernels of a dispatch key run on data, which a trace does not have."""
    parsed = torch._C._dispatch_key_parse(key)
    if torch._C._dispatch_is_alias_key(parsed) or parsed == DispatchKey.Meta:
        return False
    return bool(torch._C.DispatchKeySet(parsed).has(DispatchKey.Dense))


def _kernels(operator: str) -> list[tuple[str, bool]]:
    """Return (key, whether the kernel is torch's) for each Python kernel that a trace may run."""
    found = _KERNEL.findall(torch._C._dispatch_dump(operator))
    return [(k, _is_of_torch(file, int(line))) for k, file, line in found if not _is_backend(k)]


def _is_of_torch(file: str, line: int) -> bool:
    """Return whether a kernel is torch's; `file` and `line` created the kernel's Library."""
    for_others = file == library.__file__ and line in _lines_for_others()
    return file.startswith(HOME) and not for_others


@functools.cache
def _lines_for_others() -> frozenset[int]:
    """Return the lines of `torch/library.py` that create a Library on behalf of a caller."""
    lines: set[int] = set()
    todo = [library._impl.__code__, inspect.unwrap(library._scoped_library).__code__]
    while todo:
        code = todo.pop()
        lines.update(line for *_, line in code.co_lines() if line is not None)
        todo += [each for each in code.co_consts if isinstance(each, types.CodeType)]
    return frozenset(lines)


class _Libraries:
    """Finds users' kernels for torch's operators; caches the result for each live Library."""

    def __init__(self) -> None:
        self._known: weakref.WeakKeyDictionary[Any, tuple[int, str]] = weakref.WeakKeyDictionary()

    def user_kernel(self) -> str:
        """Return an operator of torch for which other code has registered a kernel, or ''."""
        # Only the registry of finalizers lists all libraries.
        for info in list(getattr(weakref.finalize, "_registry").values()):  # noqa: B009
            made = info.weakref() if info.func is library._del_library else None
            if made is not None and made.m is not None:
                found = self._user_kernel_of(made)
                if found:
                    return found
        return ""

    def _user_kernel_of(self, made: Any) -> str:
        count, known = self._known.get(made, (-1, ""))
        if count == len(made._op_impls):
            return known
        shared = ""
        for entry in made._op_impls:
            space, operator, key = entry.split("/")
            key = key or _COMPOSITE
            if space not in BUILTIN or _is_backend(key):
                continue
            name = f"{space}::{operator}"
            owners = {is_own for kernel, is_own in _kernels(name) if kernel == key}
            if len(owners) == 1:
                found = "" if owners == {True} else name
                self._known[made] = (len(made._op_impls), found)
                return found
            shared = name  # torch and others have kernels, and this Library may own any of them
        if not shared:
            self._known[made] = (len(made._op_impls), "")
        return shared


user_kernel = _Libraries().user_kernel


def is_replaced(operator: Any) -> bool:
    """Return whether a trace may run a user's kernel instead of adding the operator's node."""
    if operator.namespace in BUILTIN:
        return False
    kernels = _kernels(operator.name())
    if operator.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd):
        own = [is_own for key, is_own in kernels if key == _COMPOSITE]
        if not own or not all(own):
            return True
    replacing = (is_own for key, is_own in kernels if key not in _RESULTS)
    return not all(replacing) or not all(map(is_torchs, operator.py_kernels.values()))


def fake_rules() -> tuple[Any, ...]:
    """Return the fake tensor implementations registered for torch's operators, to compare them."""
    registered = simple_registry.singleton._data
    return (
        dict(fake_impls.op_implementations_dict),
        list(fake_impls.op_implementations_checks),
        {
            name: entry.fake_impl.kernel
            for name, entry in list(registered.items())
            if name.partition("::")[0] in BUILTIN and entry.fake_impl.kernel is not None
        },
    )
