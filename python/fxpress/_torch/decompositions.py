"""Import torch's names for decomposition tables, and override composite operators."""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._C import DispatchKey
from torch._export import utils as export_utils
from torch._higher_order_ops.utils import autograd_not_implemented
from torch._ops import OpOverload as OpOverload
from torch._subclasses import fake_impls
from torch.export import decomp_utils, exported_program

COMPOSITE = DispatchKey.CompositeImplicitAutograd
_AUTOGRAD_KEYS = tuple(exported_program._AUTOGRAD_ALIAS_BACKEND_KEYS_TO_OVERRIDE)
_BACKEND_KEYS = tuple(exported_program._BACKEND_KEYS_TO_OVERRIDE)
COLLECT_COMPOSITES = (decomp_utils, "_collect_all_valid_cia_ops")  # module, name of a function
keep = export_utils._special_op_to_preserve_cia
is_preservable: Callable[[Any], bool] = export_utils._is_preservable_cia_op
own_decomposition: Callable[[Any], Callable[..., Any]] = export_utils._get_decomp_for_cia
(_OWN,) = (
    code
    for code in export_utils._get_decomp_for_cia.__code__.co_consts
    if isinstance(code, types.CodeType)
)
# Returns the composite operators of aten, which torch collects once in a process.
collected_aten_composites: Any = export_utils._collect_all_valid_cia_ops_for_aten_namespace


def registered_composites() -> list[str]:
    """Return the names of all operators that C++ registered as composite."""
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key(COMPOSITE.name)
    return names


def namespaces() -> list[tuple[str, Any]]:
    """Return the namespaces in `torch.ops` that this process has accessed."""
    found = ((name, getattr(torch.ops, name)) for name in torch.ops._dir)
    return [(n, space) for n, space in found if isinstance(space, torch._ops._OpNamespace)]


def load_composites() -> None:
    """Create `torch.ops` objects for all operators that C++ registered as composite."""
    for name in registered_composites():
        space, _, operator = name.partition("::")
        packet, _, overload = operator.partition(".")
        getattr(getattr(getattr(torch.ops, space), packet), overload or "default")


def overloads(space: Any) -> Iterator[Any]:
    """Yield the operators of a namespace that this process has accessed."""
    for name in list(space):
        yield from getattr(space, name).op_overloads()


def is_own_decomposition(function: Any, operator: Any) -> bool:
    """Return whether a table's `function` is the operator's CompositeImplicitAutograd kernel."""
    return (
        isinstance(function, functools.partial)
        and getattr(function.func, "__code__", None) is _OWN
        and function.keywords == {"kernel": operator}
        and not function.args
    )


def overridden(operator: Any, function: Callable[..., Any]) -> tuple[dict[Any, Any], Any]:
    """Return kernels with which `function` decomposes `operator`, and the old decomposition."""
    kernels = dict(operator.py_kernels)
    original = own_decomposition(operator)
    for key in _AUTOGRAD_KEYS:
        if key not in kernels:
            kernels[key] = autograd_not_implemented(operator, deferred_error=True)
    kernels.pop(COMPOSITE, None)
    kernels[COMPOSITE] = function
    for key in _BACKEND_KEYS:
        if key not in kernels:
            kernels[key] = original
    return kernels, original


def _call_original(original: Callable[..., Any], mode: Any, _: Any, *args: Any, **kw: Any) -> Any:
    """Run an operator's own decomposition on fake tensors, instead of the table's function."""
    with mode:
        return original(*args, **kw)


def fake_rule(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a fake tensor implementation that runs the operator's own decomposition."""
    return functools.partial(_call_original, original)


@contextlib.contextmanager
def kernels_replaced(prepared: list[tuple[Any, dict[Any, Any], Any]]) -> Iterator[None]:
    """Replace Python kernels and fake tensor implementations of operators within the block."""
    saved = [dict(operator.py_kernels) for operator, _, _ in prepared]
    ruled = []
    try:
        for operator, kernels, rule in prepared:
            operator.py_kernels.update(kernels)
            operator._dispatch_cache.clear()
            if not fake_impls._is_op_registered_to_fake_rule(operator):
                fake_impls.register_op_impl(operator)(rule)
                ruled.append(operator)
        yield
    finally:
        for (operator, _, _), before in zip(prepared, saved, strict=True):
            operator.py_kernels.clear()
            operator.py_kernels.update(before)
            operator._dispatch_cache.clear()
        for operator in ruled:
            fake_impls._deregister_op_impl(operator)
