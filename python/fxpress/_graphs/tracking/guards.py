"""Guard on the attributes that a call of a module looks up."""

from __future__ import annotations

import functools
import types
from typing import Any

from torch.nn import Module

from fxpress._torch.tracking import (
    GLOBAL_HOOKS,
    AttrSource,
    DictGetItemSource,
    GetItemSource,
    GuardBuilder,
    Source,
    Translator,
    TypeDictSource,
    TypeMROSource,
    install_guard,
    is_captured,
    no_traced_hooks,
)
from fxpress._torch.tracking_variants import attribute_of, guard_partial

# The names of the methods that a call of a module looks up in its class.
_LOOKED_UP = ("__call__", "_call_impl", "forward")
_ABSENT = object()


def guard_to_detect_forward_monkeypatching(source: Source | None, mod: Module) -> None:
    """Guard on the ``forward`` of a module object: on its code, or on its absence.

    Of a ``functools.partial``, newer releases of torch guard on the parts.

    The guard reads the module object itself, without the changes that the traced program makes.

    Stands in for ``torch._dynamo.variables.nn_module.guard_to_detect_forward_monkeypatching``.

    Args:
        source: where the traced program finds the module; nothing happens without.
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
        absent = functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr="forward")
        install_guard(source.make_guard(absent))
        return
    found: Source = AttrSource(source, "forward")
    if isinstance(forward, functools.partial):
        guard_partial(source, mod, found, forward)
        return
    if type(forward) is types.MethodType:
        found = AttrSource(found, "__func__")
    install_guard(found.make_guard(GuardBuilder.CLOSURE_MATCH))


def guard_class_lookups(tx: Translator, module: Module, cls_source: Source) -> None:
    """Guard on the functions that a call of the module looks up in its class, and on their places.

    Torch guards on the class itself and on the absence of `forward` in some of its bases: a
    function that replaces `forward` in the class that has it, one that a more derived class gets,
    and replaced ways of calling (`__call__`, `_call_impl`) are missed. One look for each class
    and graph; none for captures, whose guards are dropped, or saved, as these cannot be. What torch
    has guarded is left out, and what is guarded here is not kept from torch, which may reach the
    class on another path.
    """
    if is_captured(tx):
        return
    # Pairs of a class's id and a name; torch's are of what the class has not.
    by_torch: set[Any] = tx.output.guarded_mro_absent_keys
    guarded: set[Any] = vars(tx.output).setdefault("_fxpress_class_lookups", set())
    kind = type(module)
    seen = (id(kind), "")  # no attribute has this name: the class as a whole
    if seen in guarded:
        return
    guarded.add(seen)
    for name in _LOOKED_UP:
        for place, base in enumerate(kind.__mro__):
            found = vars(base).get(name, _ABSENT)
            key = id(base), name
            if key not in guarded and key not in by_torch:
                guarded.add(key)
                source = GetItemSource(TypeMROSource(cls_source), place) if place else cls_source
                namespace = TypeDictSource(source)
                if found is _ABSENT:
                    absent = functools.partial(GuardBuilder.DICT_NOT_CONTAINS, key=name)
                    install_guard(namespace.make_guard(absent))
                elif type(found) is types.FunctionType:  # what is no function is built from there
                    function = DictGetItemSource(namespace, name)
                    install_guard(function.make_guard(GuardBuilder.CLOSURE_MATCH))
            if found is not _ABSENT:
                break


def guarded_global_hooks(tx: Translator, namespace: Any) -> bool:
    """Return whether there are hooks for all modules; if not, install a guard on their absence.

    Torch does not guard on it: hooks that are registered later are missed. Those that Dynamo
    would not trace, as of torch's own tools, still are.
    """
    # Kept on the tracer, to go with it; the guard too, as one that is only alike would be another.
    kept: dict[str, Any] = vars(tx.output.current_tracer)
    known = kept.get("_fxpress_global_hooks")
    if known is None or tx.output.side_effects.has_pending_mutation(namespace):
        tables = [attribute_of(namespace, tx, name).realize() for name in GLOBAL_HOOKS]
        known = tables, namespace.source.make_guard(no_traced_hooks)
        kept["_fxpress_global_hooks"] = known
    tables, guard = known
    if any(table.len() for table in tables):
        return True
    if not is_captured(tx):
        install_guard(guard)
    return False
