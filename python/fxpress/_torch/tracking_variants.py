"""Hide the differences between releases of torch in Dynamo's variables for modules.

In newer releases, methods of variables have the names of CPython's slots, and `tp_methods` lists
the methods of the traced object that a variable implements itself.
"""

from __future__ import annotations

import collections
import functools
import inspect
import types
from typing import Any, TypeVar

import torch
from torch._dynamo import variables
from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.source import AttrSource, DictGetItemSource, GetItemSource
from torch._dynamo.utils import is_safe_constant
from torch._dynamo.variables import nn_module as torch_tracking
from torch._guards import Source

from fxpress._base.errors import UnsupportedError
from fxpress._torch.versions import features

_T = TypeVar("_T", bound=type)

if not (features.modules_tracked_by_slots or features.modules_tracked_by_var_getattr):
    raise UnsupportedError(
        f"torch {torch.__version__}: NNModuleVariable lacks the methods of torch 2.13 to 2.15"
    )

# fxpress's name of a method -> Dynamo's name, or "" if Dynamo never calls the method.
_SLOTS = (
    {
        "get_attribute": "tp_getattro_impl",
        "truth_value": "nb_bool_impl",
        "representation": "tp_repr_impl",
        "length": "sq_length_impl",
        "contains": "sq_contains_impl" if features.containers_have_slots else "",
    }
    if features.modules_tracked_by_slots
    else {
        "get_attribute": "var_getattr",
        "truth_value": "bool_impl",
        "representation": "repr_impl",
        "length": "sq_length",
        "contains": "",
    }
)
GET_ATTRIBUTE = _SLOTS["get_attribute"]  # the messages of graph breaks begin with this name
# Looks up an attribute as for a user-defined object: (variable, translator, name) -> attribute.
plain_get_attribute = getattr(variables.UserDefinedObjectVariable, GET_ATTRIBUTE)


def fills_slots(cls: _T) -> _T:
    """Make the methods of a class that `_SLOTS` lists available under Dynamo's names."""
    for ours, slot in _SLOTS.items():
        if slot and ours in vars(cls):
            setattr(cls, slot, vars(cls)[ours])
    return cls


def attribute_of(variable: Any, tx: Any, name: str) -> Any:
    """Return Dynamo's variable for the attribute `name` of the object that `variable` tracks."""
    return getattr(variable, GET_ATTRIBUTE)(tx, name)


def method_table(names: frozenset[str]) -> dict[str, Any]:
    """Return `tp_methods` for a variable whose `call_listed_method` implements `names`."""
    if not features.modules_tracked_by_slots:
        return {}
    from torch._dynamo.variables.base import Method

    def handler(name: str, variable: Any, tx: Any, args: Any, kwargs: Any) -> Any:
        return variable.call_listed_method(tx, name, args, kwargs)

    return {name: Method(functools.partial(handler, name)) for name in names}


# The methods in `tp_methods` of torch's variable for modules. Dynamo assumes that any other method
# computes tensors if its arguments are all tensors: the call becomes one node.
LISTED_METHODS: frozenset[str] = frozenset(
    torch_tracking.NNModuleVariable.tp_methods if features.modules_tracked_by_slots else ()
)


def has_slot(variable: Any, name: str) -> bool:
    """Return whether Dynamo implements a method by a slot, and not as a computation of tensors."""
    return features.containers_have_slots and variable.lookup_slotdefs(name) is not None


def bound_method(function: Any, owner: Any, source: Source | None) -> Any:
    """Return Dynamo's variable for the method `function` of the object that `owner` tracks."""
    if not features.methods_are_bound_to_variables:
        return variables.UserMethodVariable(function, owner, source=source)
    # Dynamo's builder would install a guard on the function even if the method is never called.
    of_function = AttrSource(source, "__func__") if source else None
    if inspect.getattr_static(function, "_torchdynamo_inline", False):
        inlined = variables.WrapperUserFunctionVariable(
            function, "_torchdynamo_inline", source=of_function
        )
        return variables.WrapperUserMethodVariable(inlined, owner, source=source)
    return variables.UserMethodVariable(
        variables.UserFunctionVariable(function, source=of_function), owner, source=source
    )


def storage_of(table: Any) -> Any:
    """Return the variable that has a dict's items, also if the dict is of a user's subclass."""
    return getattr(table, "_base_vt", table)


def empty_hooks(hooks: Any, source: Source | None) -> Any:
    """Return Dynamo's variable for an empty dict of hooks."""
    if features.hook_tables_have_types:
        return variables.ConstDictVariable({})
    is_ordered = isinstance(hooks, collections.OrderedDict)
    kind = variables.OrderedDictVariable if is_ordered else variables.ConstDictVariable
    return kind({}, source=source)


def hook_table(items: Any, hooks: Any, source: Source) -> Any:
    """Return Dynamo's variable for `hooks`, a module's dict of hooks, with the given items."""
    if features.hook_tables_have_types:
        return variables.NNModuleHooksDictVariable(items, type(hooks), source=source)
    return variables.NNModuleHooksDictVariable(items, source=source)


# Guards on a `forward` that was assigned to a module


def guard_partial(module_source: Source, mod: Any, source: Source, partial: Any) -> None:
    """Install guards on the parts of a `functools.partial` that its call depends on."""
    if not features.partial_forwards_are_guarded_by_parts:
        install_guard(source.make_guard(GuardBuilder.CLOSURE_MATCH))
        return
    # Partials may be nested to any depth, so this is a loop, not a recursion.
    open_ = [(source, partial)]
    while open_:
        place, value = open_.pop()
        install_guard(place.make_guard(GuardBuilder.TYPE_MATCH))
        arguments = AttrSource(place, "args")
        keywords = AttrSource(place, "keywords")
        install_guard(arguments.make_guard(GuardBuilder.SEQUENCE_LENGTH))
        install_guard(keywords.make_guard(GuardBuilder.DICT_KEYS_MATCH))
        parts = [(AttrSource(place, "func"), value.func, True)]
        parts += [(GetItemSource(arguments, i), x, False) for i, x in enumerate(value.args)]
        parts += [(DictGetItemSource(keywords, k), x, False) for k, x in value.keywords.items()]
        for found, part, is_called in parts:
            if isinstance(part, functools.partial):
                open_.append((found, part))
            else:
                guard = _kind_of_guard(module_source, mod, found, part, is_called)
                install_guard(found.make_guard(guard))


def _kind_of_guard(
    module_source: Source, mod: Any, source: Source, value: Any, is_called: bool
) -> Any:
    """Return the method of GuardBuilder for a guard on a partial's function or on an argument."""
    from torch._dynamo.guards import make_dupe_guard

    if is_called or type(value) is types.FunctionType:
        return GuardBuilder.CLOSURE_MATCH
    if value is mod:
        return make_dupe_guard(source, module_source) or GuardBuilder.ID_MATCH
    return GuardBuilder.CONSTANT_MATCH if is_safe_constant(value) else GuardBuilder.ID_MATCH


# Methods that list state. torch breaks the graph if the program calls one on a changed module.
_LISTERS = frozenset(
    {"named_parameters", "parameters", "named_buffers", "buffers", "named_modules", "modules"}
)


def breaks_on_pending_mutation(variable: Any, tx: Any, name: str) -> bool:
    """Return whether the traced program lists the state of a module that it has changed."""
    effects = tx.output.side_effects
    return (
        name in _LISTERS
        # Older releases check this condition in the builtin function `getattr`.
        and features.modules_tracked_by_slots
        and variable.is_state_mutated
        and effects.is_attribute_mutation(variable)
        and effects.has_pending_mutation(variable)
    )
