"""Guards on what a call of a module looks up."""

from __future__ import annotations

import functools
import types
from typing import Any, NamedTuple

from torch.nn import Module

from fxpress._torch_compat_tracking import (
    AttrSource,
    DictGetItemSource,
    GetItemSource,
    Guard,
    GuardBuilder,
    Source,
    Translator,
    TypeDictSource,
    TypeMROSource,
    VariableTracker,
    install_guard,
)

_GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)
# What a call of a module asks its class for.
_LOOKED_UP = ("__call__", "_call_impl", "forward")


def guard_to_detect_forward_monkeypatching(source: Source | None, mod: Module) -> None:
    """Guard on the ``forward`` of a module object: on its code, or on its absence.

    What is looked at is the object as it is, not what the traced program has done to it.

    Stands in for ``torch._dynamo.variables.nn_module.guard_to_detect_forward_monkeypatching``.

    Args:
        source: where the traced program finds the module; nothing happens without.
        mod: the module.
    """
    if not source:
        return
    forward = mod.__dict__.get("forward")
    if not callable(forward):
        absent = functools.partial(GuardBuilder.NOT_PRESENT_IN_GENERIC_DICT, attr="forward")
        install_guard(source.make_guard(absent))
        return
    found: Source = AttrSource(source, "forward")
    if type(forward) is types.MethodType:
        found = AttrSource(found, "__func__")
    install_guard(found.make_guard(GuardBuilder.CLOSURE_MATCH))


def guard_class_lookups(tx: Translator, module: Module, cls_source: Source) -> None:
    """Guard on what a call of the module looks up in its class.

    Torch guards on the class itself and on the absence of `forward` in some of its bases: a
    function that replaces `forward` in the class that has it, one that a more derived class gets,
    and replaced ways of calling (`__call__`, `_call_impl`) are missed. One look for each class
    and graph.

    Args:
        tx: the translator.
        module: the module that is called.
        cls_source: where the traced program finds its class.
    """
    guarded: set[Any] = tx.output.guarded_mro_absent_keys
    kind = type(module)
    if (id(kind), _LOOKED_UP) in guarded:
        return
    guarded.add((id(kind), _LOOKED_UP))
    for name in _LOOKED_UP:
        for place, base in enumerate(kind.__mro__):
            found = vars(base).get(name)
            if (id(base), name) not in guarded:
                guarded.add((id(base), name))
                source = GetItemSource(TypeMROSource(cls_source), place) if place else cls_source
                namespace = TypeDictSource(source)
                if name not in vars(base):
                    absent = functools.partial(GuardBuilder.DICT_NOT_CONTAINS, key=name)
                    install_guard(namespace.make_guard(absent))
                elif type(found) is types.FunctionType:
                    function = DictGetItemSource(namespace, name)
                    install_guard(function.make_guard(GuardBuilder.CLOSURE_MATCH))
            if name in vars(base):
                break


class _GlobalHooks(NamedTuple):
    """The hooks for all modules, as one tracer of a graph sees them."""

    namespace: VariableTracker
    tables: list[Any]
    guards: list[Guard]  # on their lengths


def has_global_hooks(tx: Translator) -> bool:
    """Whether there are hooks for all modules; if not, a guard on that.

    Torch does not guard on it: hooks that are registered later are missed.
    """
    ours = vars(tx.output.current_tracer)  # where what is known lives as long as the tracer
    known = ours.get("_fxpress_global_hooks")
    if known is None:
        namespace = tx.nn_modules_globals_vt
        tables = _global_tables(tx, namespace)
        guards = [
            table.source.make_guard(GuardBuilder.SEQUENCE_LENGTH)
            for table in tables
            if table.source
        ]
        known = ours["_fxpress_global_hooks"] = _GlobalHooks(namespace, tables, guards)
    tables = known.tables
    if tx.output.side_effects.has_pending_mutation(known.namespace):
        tables = _global_tables(tx, known.namespace)
    if any(table.len() for table in tables):
        return True
    install_guard(*known.guards)
    return False


def _global_tables(tx: Translator, namespace: VariableTracker) -> list[Any]:
    return [namespace.var_getattr(tx, name).realize() for name in _GLOBAL_HOOKS]
