"""Install guards on the methods and hooks that a call of a module looks up."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch.nn import Module

from fxpress._torch import tracking as compat
from fxpress._torch.tracking import GetItemSource, Source, Translator, TypeMROSource, install_guard
from fxpress._torch.tracking_variants import attribute_of, guard_partial

# The names of the methods that a call of a module looks up in its class.
_LOOKED_UP = ("__call__", "_call_impl", "forward")
_ABSENT = object()


def guard_to_detect_forward_monkeypatching(source: Source | None, mod: Module) -> None:
    """Guard on the code of ``forward`` in a module's ``__dict__``, or on the absence of this key.

    With torch 2.14 or newer, a ``functools.partial`` gets guards on its function and arguments.
    This function reads the live module, so it ignores changes that the traced program makes.

    Stands in for ``torch._dynamo.variables.nn_module.guard_to_detect_forward_monkeypatching``.

    Args:
        source: where the traced program finds the module. None: install no guard.
        mod: the module.

    Example:
        >>> inner = torch.nn.ReLU()
        >>> with fxpress.installed():
        ...     compiled = torch.compile(torch.nn.Sequential(inner), backend="eager")
        ...     print(compiled(-torch.ones(2)))
        ...     inner.forward = lambda value: value
        ...     print(compiled(-torch.ones(2)))
        tensor([0., 0.])
        tensor([-1., -1.])
    """
    if not source:
        return
    forward = mod.__dict__.get("forward")
    if not callable(forward):
        absent = functools.partial(compat.GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr="forward")
        install_guard(source.make_guard(absent))
        return
    found: Source = compat.AttrSource(source, "forward")
    if isinstance(forward, functools.partial):
        guard_partial(source, mod, found, forward)
        return
    if type(forward) is types.MethodType:
        found = compat.AttrSource(found, "__func__")
    install_guard(found.make_guard(compat.GuardBuilder.CLOSURE_MATCH))


def guard_class_lookups(tx: Translator, module: Module, cls_source: Source) -> None:
    """Guard on the functions that a call of the module looks up in its class.

    torch guards on the identity of the class, and on the absence of `forward` in some bases.
    torch's guards miss a replaced `forward`, `__call__` or `_call_impl`, and a `forward` that is
    added to a more derived class. This function installs its guards once for each class in a graph,
    and leaves out guards that torch has installed. In captures for export, it installs none: some
    captures save their guards, which these guards do not support, and others drop them.
    """
    if compat.is_captured(tx):
        return
    # Sets of (id of a class, name). A name in torch's set is absent from the class.
    by_torch: set[Any] = tx.output.guarded_mro_absent_keys
    guarded: set[Any] = vars(tx.output).setdefault("_fxpress_class_lookups", set())
    kind = type(module)
    seen = (id(kind), "")  # marks the class as done: no attribute has an empty name
    if seen in guarded:
        return
    guarded.add(seen)
    for name in _LOOKED_UP:
        for index, base in enumerate(kind.__mro__):
            found = vars(base).get(name, _ABSENT)
            key = id(base), name
            if key not in guarded and key not in by_torch:
                guarded.add(key)
                source = GetItemSource(TypeMROSource(cls_source), index) if index else cls_source
                namespace = compat.TypeDictSource(source)
                if found is _ABSENT:
                    absent = functools.partial(compat.GuardBuilder.DICT_NOT_CONTAINS, key=name)
                    install_guard(namespace.make_guard(absent))
                elif type(found) is types.FunctionType:  # Dynamo guards on objects of other types
                    function = compat.DictGetItemSource(namespace, name)
                    install_guard(function.make_guard(compat.GuardBuilder.CLOSURE_MATCH))
            if found is not _ABSENT:
                break


def guarded_global_hooks(tx: Translator, namespace: Any) -> bool:
    """Return whether there are global module hooks; if not, install a guard on their absence.

    `namespace` is Dynamo's variable for `torch.nn.modules.module`. torch has no such guard, and
    misses hooks that are registered later. The guard ignores hooks that Dynamo does not trace, such
    as hooks of torch's own tools.
    """
    # The tracer stores the hook dicts and the guard, so that they are freed with the tracer. Dynamo
    # counts two equal guard objects as two guards, so all calls install one object.
    kept: dict[str, Any] = vars(tx.output.current_tracer)
    known = kept.get("_fxpress_global_hooks")
    if known is None or tx.output.side_effects.has_pending_mutation(namespace):
        tables = [attribute_of(namespace, tx, name).realize() for name in compat.GLOBAL_HOOKS]
        known = tables, namespace.source.make_guard(compat.no_traced_hooks)
        kept["_fxpress_global_hooks"] = known
    tables, guard = known
    if any(table.len() for table in tables):
        return True
    if not compat.is_captured(tx):
        install_guard(guard)
    return False
