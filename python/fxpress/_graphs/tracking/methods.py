"""Handle calls of module methods (`parameters()`, `items()`, …) by calling the live module."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from typing import Any

import torch

from fxpress._graphs.tracking.stack import record_nn_module_stack
from fxpress._torch import tracking as compat
from fxpress._torch.tracking import Args, Kwargs, Source, Translator, VariableTracker, variables
from fxpress._torch.tracking_variants import LISTED_METHODS, has_slot

# Method -> (the module's dict whose order the result has, the parameters to pass on, the method to
# call on the live module). None in place of the parameters: the method has no parameters.
_LISTS: dict[str, tuple[str | None, tuple[str, ...] | None, str]] = {
    "named_children": ("_modules", None, "named_children"),
    "named_parameters": ("_parameters", ("prefix", "recurse"), "named_parameters"),
    "named_buffers": ("_buffers", ("prefix", "recurse", "remove_duplicate"), "named_buffers"),
    "named_modules": ("_modules", ("memo", "prefix", "remove_duplicate"), "named_modules"),
    "items": (None, None, "items"),
    "children": ("_modules", None, "named_children"),
    "modules": ("_modules", (), "named_modules"),
    "parameters": ("_parameters", ("recurse",), "named_parameters"),
    "buffers": ("_buffers", ("recurse",), "named_buffers"),
    "values": (None, None, "items"),
}
# Methods for which older releases of torch ignore the argument `constant` of `call_method`.
_BEFORE_CONSTANTS = ("_call_impl", "_wrapped_call_impl", "forward", "_get_item_by_idx")
_PAIRS = ("named_children", "named_parameters", "named_buffers", "named_modules", "items")


def register_child(
    tx: Translator, parent: Any, child: Any, name: Any, source: Source
) -> VariableTracker:
    """Register a module's child in the graph under the module's key, and return its variable."""
    return tx.output.register_attr_or_module(
        child, parent.module_key, name, source=compat.NNModuleSource(source)
    )


def call_live_method(
    module_vt: Any,
    tx: Translator,
    module: Any,
    name: str,
    args: Args,
    kwargs: Kwargs,
    constant: bool,
) -> VariableTracker | None:
    """Call a method of a live module; return the result's variable. None: Dynamo must call it."""
    if constant and (LISTED_METHODS or name not in _BEFORE_CONSTANTS):
        result_name = f"{type(module).__name__}_{name}_result"
        function = getattr(module, name)
        return compat.invoke_and_store_as_constant(tx, function, result_name, args, kwargs)
    result = call_listed_method(module_vt, tx, module, name, args, kwargs)
    if result is not None or name in LISTED_METHODS:
        return result
    if name == "__iter__":
        return module_vt.tp_iter_impl(tx)
    if name == "__contains__" and args:
        found = has_child(tx, module, args[0])
        if found is not None:
            return found
    # As in torch, a call with only tensors becomes a call_method node; the method is not traced.
    if (
        not has_slot(module_vt, name)
        and callable(vars(type(module)).get(name))
        and all(each.is_tensor() for each in itertools.chain(args, kwargs.values()))
    ):
        return _call_in_graph(module_vt, tx, module, name, args, kwargs)
    return None


def call_listed_method(
    module_vt: Any, tx: Translator, module: Any, name: str, args: Args, kwargs: Kwargs
) -> VariableTracker | None:
    """Call a method of a live module if this function has a case for its name, else return None."""
    if name in ("_call_impl", "_wrapped_call_impl"):
        return module_vt.call_function(tx, args, kwargs)
    if name == "forward":
        source = module_vt.get_nn_module_stack_source()
        with record_nn_module_stack(module_vt.module_key, source, tx, module):
            return _call_in_graph(module_vt, tx, module, name, args, kwargs)
    if name == "_check_input_dim" and _checks_as_torch(module):
        return variables.ConstantVariable.create(True)
    if name == "_get_item_by_idx":
        return _item_by_index(module_vt, tx, module, args)
    if name in _LISTS:
        return _list_members(module_vt, tx, module, name, args, kwargs)
    if name == "keys":
        _expect_no_arguments(tx, name, args, kwargs)
        keys = [VariableTracker.build(tx, key) for key in module]
        return variables.ListIteratorVariable(keys, mutation_type=compat.ValueMutationNew())
    if _is_traced(module, name):
        source = compat.AttrSource(compat.AttrSource(module_vt.source, name), "__func__")
        function = getattr(module, name).__func__
        tracked = variables.UserFunctionVariable(function, source=source)
        return tx.inline_user_function_return(tracked, [module_vt, *args], kwargs)
    return None


def has_child(tx: Translator, module: Any, item: VariableTracker) -> VariableTracker | None:
    """Return whether a ModuleDict or ParameterDict has a key; None: Dynamo must handle the call."""
    if not isinstance(module, (torch.nn.ModuleDict, torch.nn.ParameterDict)):
        return None
    if not item.is_python_constant():
        return None
    return VariableTracker.build(tx, item.as_python_constant() in module)


def _checks_as_torch(module: Any) -> bool:
    """Return whether the module's `_check_input_dim` is torch's, which need not be traced."""
    check: Any = getattr(type(module), "_check_input_dim", None)
    try:
        return bool(compat.is_torch_inline_allowed(inspect.getfile(check)))
    except TypeError:  # no `_check_input_dim`, or it has no file
        return False


def _is_traced(module: Any, name: str) -> bool:
    conv = torch.nn.modules.conv
    return (
        name == "_get_abs_string_index"
        or (name == "_conv_forward" and isinstance(module, conv._ConvNd))
        or (name == "_output_padding" and isinstance(module, conv._ConvTransposeNd))
    )


def _call_in_graph(
    module_vt: Any, tx: Translator, module: Any, name: str, args: Args, kwargs: Kwargs
) -> VariableTracker:
    """Add a get_attr node for the module and a call_method node for its method."""
    receiver = tx.output.create_proxy("get_attr", module_vt.module_key, (), {})
    compat.set_example_value(receiver.node, module)
    positional, named = compat.proxy_args_kwargs(args, kwargs)
    proxy = tx.output.create_proxy("call_method", name, args=(receiver, *positional), kwargs=named)
    return compat.wrap_fx_proxy(tx=tx, proxy=proxy)


def _item_by_index(module_vt: Any, tx: Translator, module: Any, args: Args) -> VariableTracker:
    items, index = args
    what = f"``nn.Module`` {module}'s call method _get_item_by_idx requires a"
    if not index.is_python_constant():
        compat.raise_type_error(tx, f"{what} constant index argument")
    if not isinstance(items, variables.TupleVariable):
        compat.raise_type_error(tx, f"{what} tuple as first argument")
    item: Any = items.items[index.as_python_constant()]
    if isinstance(item, variables.UnspecializedNNModuleVariable):
        return item
    key = item.module_key
    return tx.output.register_attr_or_module(
        tx.output.get_submodule(key),
        key,
        key,
        source=compat.NNModuleSource(compat.GetItemSource(module_vt.source, key)),
    )


def _list_members(
    module_vt: Any, tx: Translator, module: Any, name: str, args: Args, kwargs: Kwargs
) -> VariableTracker:
    table, parameters, lister = _LISTS[name]
    if table is not None:
        tx.output.guard_on_key_order.add(compat.AttrSource(module_vt.source, table))
    options = {}
    if parameters is None:
        _expect_no_arguments(tx, name, args, kwargs)
    elif parameters:
        arguments = _constants(module_vt, tx, module, name, args, kwargs)
        options = {key: arguments[key] for key in parameters}
    members = getattr(module, lister)(**options)
    items: list[VariableTracker] = []
    for path, member in members:
        tracked = register_child(tx, module_vt, member, path, _source_of(module_vt.source, path))
        if name in _PAIRS:
            tracked = variables.TupleVariable([VariableTracker.build(tx, path), tracked])
        items.append(tracked)
    return variables.ListIteratorVariable(items, mutation_type=compat.ValueMutationNew())


def _source_of(source: Source, path: str) -> Source:
    """Return the source of a member by its dotted path; the path of the module itself is ""."""
    first, *_ = parts = path.split(".")
    for part in parts if first else ():
        source = compat.AttrSource(source, part)
    return source


def _expect_no_arguments(tx: Translator, name: str, args: Args, kwargs: Kwargs) -> None:
    if args or kwargs:
        found = f"{len(args)} args and {len(kwargs)} kwargs"
        compat.raise_args_mismatch(tx, name, "0 args and 0 kwargs", found)


def _constants(
    module_vt: Any, tx: Translator, module: Any, name: str, args: Args, kwargs: Kwargs
) -> dict[str, Any]:
    """Bind the arguments of a method, which must be constants; return them by parameter name."""
    if not all(each.is_python_constant() for each in itertools.chain(args, kwargs.values())):
        compat.unimplemented(
            gb_type="non-const argument in nn.Module method",
            context=f"call_method: {module_vt} {name} {args} {kwargs}",
            explanation=f"Arguments of method `{name}` of nn.Module {module} must be constants.",
            hints=[],
        )
    method: Callable[..., Any] = getattr(module, name)
    bound = inspect.signature(method).bind(
        *(each.as_python_constant() for each in args),
        **{key: each.as_python_constant() for key, each in kwargs.items()},
    )
    bound.apply_defaults()
    return dict(bound.arguments)
