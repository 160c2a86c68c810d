"""Define `NNModuleVariable`, which tracks one module as a part of the graph."""

from __future__ import annotations

import inspect
import types
from typing import Any, NoReturn

import torch
from torch.nn import Module

from fxpress import _native
from fxpress._graphs.tracking.guards import guard_to_detect_forward_monkeypatching
from fxpress._graphs.tracking.lazy import initialize_lazy_module
from fxpress._graphs.tracking.methods import (
    call_listed_method,
    call_live_method,
    has_child,
    register_child,
)
from fxpress._graphs.tracking.stack import StackSource, record_nn_module_stack
from fxpress._torch import tracking as compat
from fxpress._torch import tracking_variants as variants
from fxpress._torch.tracking import Args, Kwargs, Source, Translator, VariableTracker, variables

_ORDERED = (torch.nn.ModuleList, torch.nn.ParameterList, torch.nn.Sequential)
_SUBSCRIPTS = tuple(
    kind.__getitem__ for kind in (torch.nn.ModuleDict, torch.nn.ParameterDict, *_ORDERED)
)


@variants.fills_slots
class NNModuleVariable(StackSource, compat.TorchNNModuleVariable):  # type: ignore[misc]
    """A variable for a module guarded by identity. The graph calls the module, or Dynamo traces it.

    Dynamo uses this class where parameters are not inputs of the graph: for legacy export, and for
    modules with ``torchdynamo_force_dynamic = False``.

    Stands in for ``torch._dynamo.variables.nn_module.NNModuleVariable``.

    Args:
        module_type: the class of the module, which changes for lazy modules.
        module_key: the name of the module in the graph.
        value: the module.
        source: where the traced program finds the module.
    """

    def __init__(self, module_type: type, module_key: str, value: Module, **kwargs: Any) -> None:
        VariableTracker.__init__(self, **kwargs)
        self.module_type = module_type
        self.module_key = module_key
        self.value = value
        self.nn_module_stack_source = self.source

    def _module(self, tx: Translator) -> Any:
        return tx.output.get_submodule(self.module_key)

    def get_dict_vt(self, tx: Translator) -> Any:
        if getattr(self, "dict_vt", None) is None:
            self.dict_vt = variables.DunderDictVariable.create(tx, self)
        return self.dict_vt

    def python_type(self) -> type:
        return self.module_type

    def get_id(self, tx: Translator) -> int | None:
        return id(self._module(tx))

    def get_real_python_backed_value(self) -> object:
        return self.value

    def truth_value(self, tx: Translator) -> Any:
        return variables.ConstantVariable.create(bool(self._module(tx)))

    def representation(self, tx: Translator) -> VariableTracker:
        return VariableTracker.build(tx, repr(self._module(tx)))

    def length(self, tx: Translator) -> VariableTracker:
        return VariableTracker.build(tx, len(self._module(tx)))

    def contains(self, tx: Translator, item: VariableTracker) -> VariableTracker:
        found = has_child(tx, self._module(tx), item)
        if found is None:
            found = VariableTracker.sq_contains_impl(self, tx, item)
        return found

    def is_training(self, tx: Translator) -> bool:
        return bool(getattr(self._module(tx), "training", False))

    def call_obj_hasattr(self, tx: Translator, name: str) -> Any:
        found = hasattr(self._module(tx), name)
        compat.guard_attribute_exists(self.source, name)
        return VariableTracker.build(tx, found)

    def _wrap_submodule(
        self, tx: Translator, source: Source, submod: Module, *key_extra: Any, **options: Any
    ) -> None:
        """Do nothing, as torch's method of this name."""

    def convert_to_unspecialized(self, tx: Translator) -> NoReturn:
        """Restart the trace, which then tracks all modules of this class by their class."""
        module = self._module(tx)
        compat.GenerationTracker.tag(module)
        if tx.f_code.co_name != "__init__":
            compat.GenerationTracker.mark_class_dynamic(type(module))
        raise compat.UnspecializeRestartAnalysis

    def unpack_var_sequence(self, tx: Translator) -> list[VariableTracker]:
        container = self._module(tx)
        if isinstance(container, torch.nn.ModuleDict):
            for name, child in container.items():
                register_child(tx, self, child, name, compat.GetItemSource(self.source, name))
            return [VariableTracker.build(tx, name) for name in container]
        if not isinstance(container, _ORDERED):
            raise AssertionError(
                "Expected ModuleList, ParameterList, or Sequential, got "
                f"{compat.typestr(container)}"
            )
        return [
            register_child(tx, self, child, index, compat.GetItemSource(self.source, index))
            for index, child in enumerate(container)
        ]

    def tp_iter_impl(self, tx: Translator) -> VariableTracker:
        items = self.unpack_var_sequence(tx)
        return variables.ListIteratorVariable(items, mutation_type=compat.ValueMutationNew())

    def mp_subscript_impl(self, tx: Translator, key: VariableTracker) -> VariableTracker:
        module = self._module(tx)
        if type(module).__getitem__ not in _SUBSCRIPTS:
            return self._own_subscript(tx, module, key)
        if isinstance(key, compat.SliceVariable):
            return self._slice(tx, module, key.as_python_constant())
        if isinstance(key, compat.SymNodeVariable):
            index = key.evaluate_expr(tx.output)
        elif key.is_python_constant():
            index = key.as_python_constant()
        else:
            compat.unimplemented(
                gb_type="Unsupported key type for nn.Module.__getitem__",
                context=f"mp_subscript_impl: {self} {key}",
                explanation="The key of a module's subscript is not a constant.",
                hints=[],
            )
        return register_child(
            tx, self, module[index], index, compat.GetItemSource(self.source, index)
        )

    def _own_subscript(self, tx: Translator, module: Any, key: VariableTracker) -> VariableTracker:
        if not (key.is_python_constant() and isinstance(key.as_python_constant(), (str, int))):
            compat.unimplemented(
                gb_type="Invalid or non-const argument in nn.Module __getitem__",
                context=f"mp_subscript_impl: {self} {key}",
                explanation=f"The key for `__getitem__` of nn.Module {module} must be a constant.",
                hints=["Use constant arguments of type str or int for __getitem__"],
            )
        function = module.__getitem__.__func__
        if not isinstance(function, types.FunctionType):
            raise AssertionError(f"Expected FunctionType, got {type(function)}")
        source = compat.AttrSource(compat.AttrSource(self.source, "__getitem__"), "__func__")
        return _inline(tx, function, source, [self, key], {})

    def _slice(self, tx: Translator, module: Any, key: slice) -> VariableTracker:
        if not tx.output.export:
            # The slice is a new module without a source, so it can only be tracked by its class.
            self.convert_to_unspecialized(tx)
        part = module[key]
        for index, child in zip(range(len(module))[key], part, strict=False):
            source = compat.NNModuleSource(compat.GetItemSource(self.source, index))
            tx.output.register_attr_or_module(child, index, source=source)
        return tx.output.register_attr_or_module(
            part,
            f"{self}.__getitem__(slice)",
            source=compat.NNModuleSource(compat.GetItemSource(self.source, key)),
        )

    def get_attribute(self, tx: Translator, name: str) -> VariableTracker:
        module = self._module(tx)
        own: dict[str, Any] = object.__getattribute__(module, "__dict__")
        if not self.source:
            compat.unimplemented(
                gb_type="getattr with no source",
                context=f"{variants.GET_ATTRIBUTE} {self} {name}",
                explanation="The program reads an attribute of an nn.Module without a source.",
                hints=[*compat.graph_break_hints.DYNAMO_BUG],
            )
        if name == "__dict__":
            return self.get_dict_vt(tx)

        found, of_object = _find_member(module, own, name)
        if found is _MISSING:
            result = self._custom_getattr_fallback(module, tx, name, self.source)
            if result is None:
                kind = type(module).__name__
                compat.raise_observed(
                    tx, AttributeError, f"'{kind}' object has no attribute '{name}'"
                )
            return result
        if name == "forward":
            guard_to_detect_forward_monkeypatching(self.source, module)
        source = compat.AttrSource(self.source, name)
        if not of_object:
            return self._class_member(tx, module, name, found, source)
        out = VariableTracker.build(tx, found, compat.NNModuleSource(source))
        if isinstance(out, compat.TRACKED_MODULES):
            out.set_nn_module_stack_source(
                compat.AttrSource(self.get_nn_module_stack_source(), name)
            )
        return out

    def _class_member(
        self, tx: Translator, module: Any, name: str, found: Any, source: Source
    ) -> VariableTracker:
        if name == "__class__":
            return VariableTracker.build(tx, module.__class__, source=source)
        kind = type(found)
        if kind is property:
            getter = compat.AttrSource(
                compat.AttrSource(compat.AttrSource(self.source, "__class__"), name), "fget"
            )
            function = variables.UserFunctionVariable(found.fget, source=getter)
            return function.call_function(tx, [self], {})
        if kind is classmethod:
            owner = variables.UserDefinedObjectVariable(type(module))
            return variants.bound_method(found.__func__, owner, source)
        if kind is staticmethod:
            return variables.UserFunctionVariable(found.__get__(module), source=source)
        if kind is types.FunctionType:
            return variants.bound_method(found, self, source)
        if compat.is_safe_constant(found) or compat.istensor(found):
            return VariableTracker.build(tx, found, compat.NNModuleSource(source))
        class_name, kind_name = compat.typestr(module), compat.typestr(found)
        compat.unimplemented(
            gb_type="Unsupported nn.Module attribute type",
            context=f"nn.Module subclass: {class_name}, name: {name}, attribute type: {kind_name}",
            explanation=f"Class attributes of type `{kind_name}` of an nn.Module cannot be traced.",
            hints=[
                f"Move `{name}` out of `{class_name}`, or make it an attribute of the object.",
                "Methods, class and static methods, properties, constants and tensors are traced.",
                *compat.graph_break_hints.SUPPORTABLE,
            ],
        )

    def _custom_getattr_fallback(
        self, base: Module, tx: Translator, name: str, obj_source: Source
    ) -> VariableTracker | None:
        """Trace the user's `__getattribute__` or `__getattr__`, and return the value, or None."""
        if compat.object_has_getattribute(base):
            function: Any = inspect.getattr_static(type(base), "__getattribute__")
            source = compat.AttrSource(obj_source, "__getattribute__") if obj_source else None
            method = variants.bound_method(function, self, source)
            try:
                return method.call_function(tx, [variables.ConstantVariable.create(name)], {})
            except compat.ObservedAttributeError:
                compat.handle_observed_exception(tx)
            except compat.Unsupported:
                compat.unimplemented(
                    gb_type="Custom __getattribute__ in nn.Module attribute access",
                    context=f"{variants.GET_ATTRIBUTE} {self} {name}",
                    explanation="The `__getattribute__` of this `nn.Module` cannot be traced.",
                    hints=[
                        "Write a `@property` instead, or a simpler `__getattribute__`.",
                        *compat.graph_break_hints.SUPPORTABLE,
                    ],
                )
        function = compat.get_custom_getattr(base, ignore_nn_module_getattr=True)
        if function is None:
            return None
        if not isinstance(function, types.FunctionType):
            compat.unimplemented(
                gb_type="torch.nn.Module with a non-function custom __getattr__",
                context=f"{variants.GET_ATTRIBUTE} {self} {name}",
                explanation="The `__getattr__` of this `nn.Module` is not a Python function.",
                hints=[
                    "Write `__getattr__` as a Python function.",
                    *compat.graph_break_hints.SUPPORTABLE,
                ],
            )
        method = variants.bound_method(function, self, compat.AttrSource(obj_source, "__getattr__"))
        return method.call_function(tx, [VariableTracker.build(tx, name)], {})

    def call_function(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        module = self._module(tx)
        source = self.get_nn_module_stack_source()
        sequential = torch.nn.Sequential
        with record_nn_module_stack(self.module_key, source, tx, module):
            if isinstance(module, sequential) and type(module).forward is sequential.forward:
                return self._call_children(tx, module, args, kwargs)
            if compat.is_lazy_module(module):
                if module.cls_to_become is not None:
                    self.module_type = module.cls_to_become
                initialize_lazy_module(tx, module, args, kwargs)
            # The graph calls modules of torch. But in bodies of higher-order operators, the code of
            # these modules is traced, because a body needs parameters as inputs.
            if (
                tx.output.is_root_tracer()
                and module.__module__.startswith(("torch.nn.", "torch.ao."))
                and module.__module__ != "torch.nn.utils.parametrize"
            ):
                if compat.nnmodule_has_hooks(
                    module, check_forward_hooks=True, check_backward_hooks=True
                ):
                    self.convert_to_unspecialized(tx)
                proxy = tx.output.create_proxy(
                    "call_module", self.module_key, *compat.proxy_args_kwargs(args, kwargs)
                )
                return compat.wrap_fx_proxy(tx=tx, proxy=proxy)
            return self._inline_call(tx, module, args, kwargs)

    def _call_children(
        self, tx: Translator, module: Any, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if compat.nnmodule_has_hooks(module):
            self.convert_to_unspecialized(tx)
        if compat.is_lazy_module(module):
            raise AssertionError("a Sequential is never lazy")
        if kwargs:
            compat.raise_args_mismatch(
                tx, "torch.nn.Module.Sequential", "0 kwargs", f"{len(kwargs)} kwargs"
            )
        (result,) = args
        for name, child in module._modules.items():
            tracked = register_child(tx, self, child, name, compat.AttrSource(self.source, name))
            tx.call_function(tracked, [result], {})
            result = tx.pop()
        return result

    def _inline_call(
        self, tx: Translator, module: Any, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        name = "forward" if isinstance(module, torch.fx.GraphModule) else "_call_impl"
        function = getattr(module, name)
        source: Source = compat.AttrSource(self.source, name)
        if type(function) is types.MethodType:
            function = function.__func__
            source = compat.AttrSource(source, "__func__")
            args = [self, *args]
        elif type(function) is not types.FunctionType:
            raise AssertionError(f"Expected FunctionType, got {type(function)}")
        return _inline(tx, function, source, args, kwargs)

    def call_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs, constant: bool = False
    ) -> VariableTracker:
        result = call_live_method(self, tx, self._module(tx), name, args, kwargs, constant)
        if result is not None:
            return result
        return VariableTracker.call_method(self, tx, name, list(args), kwargs)

    def call_listed_method(
        self, tx: Translator, name: str, args: Args, kwargs: Kwargs
    ) -> VariableTracker | None:
        return call_listed_method(self, tx, self._module(tx), name, args, kwargs)

    tp_methods = variants.method_table(variants.LISTED_METHODS)


_MISSING = object()


def _find_member(module: Any, own: dict[str, Any], name: str) -> tuple[Any, bool]:
    """Return (attribute, whether the object itself has the attribute, and not its class)."""
    if name in own:
        return own[name], True
    in_class = _native.class_attribute(type(module), name, _MISSING) is not _MISSING
    if not in_class and name in own.get("_modules", ()):
        return own["_modules"][name], True
    for table in ("_parameters", "_buffers"):
        if name in own.get(table, ()):
            return own[table][name], True
    return inspect.getattr_static(module, name, _MISSING), False


def _inline(
    tx: Translator, function: Any, source: Source, args: Args, kwargs: Kwargs
) -> VariableTracker:
    tracked = variables.UserFunctionVariable(function, source=source)
    return tx.inline_user_function_return(tracked, args, kwargs, allow_nested_graph_breaks=True)
