"""Define `UnspecializedNNModuleVariable`, which tracks a module by the module's class."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch.nn import Module

from fxpress import _native
from fxpress._base.frame_space import call_with_space, has_space
from fxpress._graphs.tracking import guards
from fxpress._graphs.tracking.lazy import initialize_lazy_module
from fxpress._graphs.tracking.reuse.journal import note_once, open_journal
from fxpress._graphs.tracking.stack import StackSource, record_nn_module_stack
from fxpress._torch import tracking as compat
from fxpress._torch import tracking_variants as variants
from fxpress._torch.tracking import Args, Kwargs, Source, Translator, VariableTracker, variables

try:
    from fxpress._graphs.tracking.reuse.calls import call as call_once
except (ImportError, AttributeError):  # torch lacks a function that `reuse` needs
    call_once = None  # type: ignore[assignment]

_FORWARD_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
)
_HOOKS = ("_backward_hooks", "_backward_pre_hooks", *_FORWARD_HOOKS)
_STATE = ("_parameters", "_buffers", "_modules")
_TABLES = (variables.ConstDictVariable, variables.UserDefinedDictVariable)
_ITERATED = (
    torch.nn.ModuleList.__iter__,
    torch.nn.ParameterList.__iter__,
    torch.nn.Sequential.__iter__,
)


@variants.fills_slots
class UnspecializedNNModuleVariable(StackSource, compat.TorchUnspecializedNNModuleVariable):  # type: ignore[misc]
    """A variable for a module that tracks the module by its class; parameters are graph inputs.

    Dynamo uses this class by default. Attributes are looked up as in CPython. Methods such as
    ``__getattr__`` and ``__call__`` that a class inherits unchanged from ``torch.nn.Module`` are
    not traced.

    Stands in for ``torch._dynamo.variables.nn_module.UnspecializedNNModuleVariable``, except:

    - If a buffer and a submodule have the same name, it refers to the buffer, as in eager mode.
    - Deleting an attribute that does not exist raises AttributeError, and so does assigning a
      parameter or a submodule before ``super().__init__()``.
    - Dynamo compiles again if a method of the class is replaced or a global hook is registered.

    Args:
        value: the module.
        source: where the traced program finds the module; None if the program created it.
        kwargs: further arguments of Dynamo's ``UserDefinedObjectVariable``.
    """

    _nonvar_fields: ClassVar[set[str]] = {"_tables", *compat.PLAIN_FIELDS_OF_UNSPECIALIZED}

    def __init__(self, value: Module, **kwargs: Any) -> None:
        lazy = kwargs.get("value_type")
        if lazy is not None and getattr(lazy, "cls_to_become", None) is type(value):
            kwargs["value_type"] = type(value)  # the module is no longer lazy
        compat.UserDefinedObjectVariable.__init__(self, value=value, **kwargs)
        self.is_state_mutated = False
        self.nn_module_stack_source = self.source
        # Name of a dict of state (`_parameters`, …) -> (tracer that read it, the dict's variable).
        self._tables: dict[str, tuple[object, VariableTracker]] = {}

    def _wrap_source(self, attr_source: Any) -> Any:
        return attr_source

    @staticmethod
    @functools.cache
    def _nn_module_method_ids() -> set[int]:
        traced = (Module.__setattr__, Module.__init__, Module.__delattr__)
        methods = [each for each in vars(Module).values() if each not in traced]
        return {id(each.__code__) for each in methods if hasattr(each, "__code__")}

    def unpack_var_sequence(self, tx: Translator) -> list[VariableTracker]:
        try:
            iterate = inspect.getattr_static(self.value_type, "__iter__")
        except AttributeError as error:
            raise NotImplementedError from error
        if iterate in _ITERATED:
            # Trace `__iter__`, because the traced program may have changed the container.
            function = VariableTracker.build(tx, iterate)
            items = tx.inline_user_function_return(function, [self], {})
            unpacked: list[VariableTracker] = items.unpack_var_sequence(tx)
        else:
            unpacked = compat.UserDefinedObjectVariable.unpack_var_sequence(self, tx)
        return unpacked

    def call_function(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        if call_once is None:
            return self._call_function(tx, args, kwargs)
        return call_once(self, tx, args, kwargs, lambda: self._call_function(tx, args, kwargs))

    def _call_function(self, tx: Translator, args: Args, kwargs: Kwargs) -> VariableTracker:
        module: Any = self.value
        if compat.is_lazy_module(module):
            if module.cls_to_become is not None:
                self.value_type = module.cls_to_become
            initialize_lazy_module(tx, module, args, kwargs)

        name = self._called_method(tx)
        function = getattr(self.value_type, name)
        arguments = [self, *args]
        # The outermost call reserves stack space, so that nested calls need no extra frames for it.
        call: Callable[..., VariableTracker] = self._call
        if not has_space():
            call = functools.partial(call_with_space, call)
        if not self.source:
            return call(tx, function, None, arguments, kwargs)
        source = self.get_source_by_walking_mro(tx, name)
        guards.guard_to_detect_forward_monkeypatching(self.source, module)
        if self.cls_source is not None:
            guards.guard_class_lookups(tx, module, self.cls_source)
        stack_source = self.get_nn_module_stack_source()
        with record_nn_module_stack(str(id(module)), stack_source, tx, module):
            return call(tx, function, source, arguments, kwargs)

    @staticmethod
    def _call(
        tx: Translator, function: Any, source: Source | None, args: Args, kwargs: Kwargs
    ) -> VariableTracker:
        if isinstance(function, (types.FunctionType, torch.jit.ScriptFunction)):
            # `VariableTracker.build` with `source` would add a guard on the function's code.
            return variables.UserFunctionVariable(function, source=source).call_function(
                tx, args, kwargs
            )
        return _call_traced(tx, function, source, args, kwargs)

    def _called_method(self, tx: Translator) -> str:
        """Return the name of the method to trace: `forward` if `__call__` would only call it."""
        module: Any = self.value
        if (
            self._is_called_as_usual()
            and not self.has_key_in_generic_dict(tx, "forward")
            and isinstance(
                _native.class_attribute(type(module), "forward", None), types.FunctionType
            )
            and not self._has_hooks(tx)
        ):
            return "forward"
        return "_call_impl" if isinstance(module, torch.fx.GraphModule) else "__call__"

    def _is_called_as_usual(self) -> bool:
        module: Any = self.value
        if self._object_has_getattribute:
            methods: list[Any] = [module.__call__, module._call_impl]
            if not all(type(each) is types.MethodType for each in methods):
                return False
            functions = [each.__func__ for each in methods]
        else:
            own = module.__dict__
            if "__call__" in own or "_call_impl" in own:
                return False
            functions = [self.lookup_class_mro_attr(n) for n in ("__call__", "_call_impl")]
        return (
            functions[0] is compat.unpatched_nn_module_call
            and functions[1] is compat.unpatched_nn_module_call_impl
        )

    def _has_hooks(self, tx: Translator) -> bool:
        module: Any = self.value
        effects = tx.output.side_effects
        globals_: Any = tx.nn_modules_globals_vt  # Dynamo adds its guards at this read
        if not effects.has_pending_mutation(self) and _native.has_empty_tables(module, _HOOKS):
            if self.source:
                compat.guard_all(
                    self.source, _HOOKS, compat.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT
                )
        else:
            for name in _HOOKS:
                table: Any = self.get_attribute(tx, name).realize()
                if table.len():
                    return True
        return guards.guarded_global_hooks(tx, globals_.realize())

    def call_method(self, tx: Translator, name: str, args: Args, kwargs: Kwargs) -> VariableTracker:
        if name in ("_call_impl", "_wrapped_call_impl"):
            source = self.get_source_by_walking_mro(tx, name) if self.source else None
            return _call_traced(tx, getattr(self.value_type, name), source, [self, *args], kwargs)

        if not self.has_key_in_generic_dict(tx, name):
            method = inspect.getattr_static(type(self.value), name, None)
            if isinstance(method, staticmethod):
                found = compat.AttrSource(self.get_source_by_walking_mro(tx, name), "__func__")
                return _call_traced(tx, method.__func__, found, args, kwargs)
            code = getattr(method, "__code__", None)
            if code is not None and id(code) in self._nn_module_method_ids():
                compat.unimplemented(
                    gb_type="UnspecializedNNModuleVariable missing method",
                    context=f"call_method: {self} {name} {args} {kwargs}",
                    explanation=f"Method {name} of nn.Module {self.value} cannot be called here.",
                    hints=[*compat.graph_break_hints.DIFFICULT],
                )
            own: dict[str, Any] = self.value.__dict__
            if name == "__setattr__" and "_parameters" in own:
                self._check_assignment(tx, method, args)
                self._note_assignment(own, args[0].as_python_constant(), args[1])
            if method is Module.__delattr__ or (
                method is Module.__setattr__ and isinstance(args[1], variables.DeletedVariable)
            ):
                self._check_deletion(tx, args[0].as_python_constant())
                # Trace `__delattr__`, so that Dynamo records how it changes `_parameters` etc.
                return _call_traced(tx, Module.__delattr__, None, [self, args[0]], kwargs)

        return compat.UserDefinedObjectVariable.call_method(self, tx, name, list(args), kwargs)

    def get_id(self, tx: Translator) -> int | None:
        note_once(tx, "the identity of a module")
        found: int | None = super().get_id(tx)
        return found

    def hash_impl(self, tx: Translator) -> tuple[int, bool]:
        note_once(tx, "the hash of a module")
        found: tuple[int, bool] = super().hash_impl(tx)
        return found

    def _note_assignment(self, own: dict[str, Any], name: str, value: VariableTracker) -> None:
        """Set `is_state_mutated` if state is assigned, because the live module does not change."""
        if _kind_of_state(value) is not None or any(name in own[table] for table in _STATE):
            self.is_state_mutated = True

    def _check_assignment(self, tx: Translator, method: Any, args: Args) -> None:
        """Raise AttributeError, as Module does, if state is assigned before `Module.__init__()`.

        The live object cannot answer this, because Dynamo has already called `Module.__init__()`.
        """
        effects = tx.output.side_effects
        if (
            method is not Module.__setattr__
            or not isinstance(self.mutation_type, compat.AttributeMutationNew)
            or effects.has_pending_mutation_of_attr(self, "_modules")
            or effects.has_pending_mutation_of_attr(self, "__dict__")
        ):
            return
        kind = _kind_of_state(args[1])
        if kind is not None:
            message = f"cannot assign {kind} before Module.__init__() call"
            compat.raise_observed(tx, AttributeError, message)

    def _check_deletion(self, tx: Translator, name: str) -> None:
        """Raise AttributeError if the attribute to delete does not exist, as Python does."""
        descriptor = type(self.lookup_class_mro_attr(name))
        if hasattr(descriptor, "__set__") or hasattr(descriptor, "__delete__"):
            return
        if self.has_key_in_generic_dict(tx, name):
            return
        key = compat.SourcelessBuilder.create(tx, name)
        for field in _STATE:
            table = self._table(tx, field)
            if not isinstance(table, _TABLES) or self.getattr_helper(tx, field, key) is not None:
                return
        # Let Python create the message, which depends on the version of Python.
        blank = type(type(self.value).__name__, (), {})()
        try:
            object.__delattr__(blank, name)
        except AttributeError as error:
            compat.raise_observed(tx, AttributeError, *map(str, error.args))

    def get_attribute(self, tx: Translator, name: str) -> VariableTracker:
        journal = open_journal(tx)
        if journal is not None:
            journal.reads.append((id(self.value), name))
        if variants.breaks_on_pending_mutation(self, tx, name):
            compat.unimplemented(
                gb_type="getattr() on nn.Module with pending mutation",
                context=f"getattr({self}, {name})",
                explanation="The program lists the state of an nn.Module after assigning to it.",
                hints=[],
            )
        if name in _HOOKS:
            hooks = self._hooks(tx, name)
            if hooks is not None:
                return hooks
        return variants.plain_get_attribute(self, tx, name)

    def _hooks(self, tx: Translator, name: str) -> VariableTracker | None:
        """Return the variable of a hook dict, without guards on keys; None: look it up as usual."""
        if tx.output.side_effects.has_pending_mutation_of_attr(self, name):
            return None
        hooks = getattr(self.value, name)
        if isinstance(hooks, dict) and not hooks:
            if self.source:
                compat.guard_all(
                    self.source, (name,), compat.GuardBuilder.EMPTY_NN_MODULE_HOOKS_DICT
                )
            return variants.empty_hooks(hooks, self.source and compat.AttrSource(self.source, name))
        if not self.source or name not in _FORWARD_HOOKS:
            return None
        source = compat.AttrSource(self.source, name)
        compat.install_guard(source.make_guard(compat.GuardBuilder.SEQUENCE_LENGTH))
        tx.output.guard_on_key_order.add(source)
        items = {}
        for position, key, hook in compat.enumerate_items_with_dict_position(hooks):
            found = compat.DictGetItemSource(source, compat.ConstDictKeySource(source, position))
            items[VariableTracker.build(tx, key)] = compat.LazyVariableTracker.create(
                hook, found, tx=tx
            )
        return variants.hook_table(items, hooks, source)

    def lookup_class_mro_attr(self, name: str) -> object:
        return _native.class_attribute(self.value.__class__, name, compat.NO_SUCH_SUBOBJ)

    def generic_getattr(self, tx: Translator, name: str) -> VariableTracker:
        journal = open_journal(tx)
        if journal is not None:  # for `super().__getattribute__`, which skips get_attribute
            journal.reads.append((id(self.value), name))
        module: Any = self.value
        kind = type(module)
        kind_getter = _native.class_attribute(kind, "__getattribute__", None)
        # If the traced program changed the module, or its class has the name or a custom
        # `__getattribute__`, look the name up as for any object.
        if (
            name in ("__dict__", "__class__")
            or tx.output.side_effects.has_pending_mutation(self)
            or self.lookup_class_mro_attr(name) is not compat.NO_SUCH_SUBOBJ
            or kind_getter is not object.__getattribute__
            or module.__class__ is not kind
        ):
            return compat.UserDefinedObjectVariable.generic_getattr(self, tx, name)
        own: dict[str, Any] = module.__dict__
        if name in own:
            source = compat.AttrSource(self.source, name) if self.source else None
            source = self.maybe_wrap_nn_module_source_for_instance(tx, name, source)
            return VariableTracker.build(tx, own[name], source)
        getter = _native.class_attribute(kind, "__getattr__", None)
        if getter is not compat.unpatched_nn_module_getattr or not _native.has_plain_tables(
            own, _STATE
        ):
            return compat.UserDefinedObjectVariable.generic_getattr(self, tx, name)
        found = self.manually_trace_nn_module_getattr(tx, name)
        if (
            self.source
            and getter is Module.__getattr__
            and isinstance(found, compat.TRACKED_MODULES)
        ):
            path = compat.AttrSource(self.get_nn_module_stack_source(), name)
            found.set_nn_module_stack_source(path)
        return found

    def manually_trace_nn_module_getattr(self, tx: Translator, name: str) -> VariableTracker:
        key = compat.SourcelessBuilder.create(tx, name)
        found = self.getattr_helper(tx, "_parameters", key)
        if found is None:
            found = self.getattr_helper(tx, "_modules", key)
            # A buffer takes precedence. A look-up adds guards, so look only if a buffer may exist.
            buffers: Any = self.value.__dict__["_buffers"]
            effects = tx.output.side_effects
            is_changed = buffers in effects and effects.is_modified(effects[buffers])
            if found is None or name in buffers or is_changed:
                buffer = self.getattr_helper(tx, "_buffers", key)
                found = found if buffer is None else buffer
        if found is None:
            kind = type(self.value).__name__
            compat.raise_observed(tx, AttributeError, f"'{kind}' object has no attribute '{name}'")
        return found

    def getattr_helper(
        self, tx: Translator, field: str, name_vt: VariableTracker
    ) -> VariableTracker | None:
        table = self._table(tx, field)
        if isinstance(table, variables.UserDefinedDictVariable):
            table = variants.storage_of(table)
        if isinstance(table, variables.ConstDictVariable):
            return table.maybe_getitem_const(name_vt)
        return None

    def _table(self, tx: Translator, field: str) -> VariableTracker | None:
        """Return the variable of a dict of state; cached until the program changes the module."""
        if tx.output.side_effects.has_pending_mutation(self):
            return self.get_attribute(tx, field)
        tracer = tx.output.current_tracer
        known = self._tables.get(field)
        if known is None or known[0] is not tracer:
            known = self._tables[field] = (tracer, self.get_attribute(tx, field))
        return known[1]


def _call_traced(
    tx: Translator, function: Any, source: Source | None, args: Args, kwargs: Kwargs
) -> VariableTracker:
    built = VariableTracker.build(tx, function, source=source, realize=True)
    return built.call_function(tx, args, kwargs)


def _kind_of_state(value: VariableTracker) -> str | None:
    """Return "parameters" or "module" for an assigned parameter or module, else None."""
    if value.is_tensor() and value.python_type() is torch.nn.Parameter:
        return "parameters"
    return "module" if isinstance(value, compat.TRACKED_MODULES) else None


class UnspecializedBuiltinNNModuleVariable(
    UnspecializedNNModuleVariable,
    compat.TorchUnspecializedBuiltinNNModuleVariable,  # type: ignore[misc]
):
    """A variable for a module of torch: numbers in it become constants, and sizes are static.

    Stands in for ``torch._dynamo.variables.nn_module.UnspecializedBuiltinNNModuleVariable``.
    """


class FSDPManagedNNModuleVariable(
    UnspecializedNNModuleVariable,
    compat.TorchFSDPManagedNNModuleVariable,  # type: ignore[misc]
):
    """A variable for a module that FSDP manages: sources of its attributes are FSDP sources.

    Stands in for ``torch._dynamo.variables.nn_module.FSDPManagedNNModuleVariable``.

    Raises:
        AssertionError: `source` is missing.
    """

    def __init__(self, value: Module, **kwargs: Any) -> None:
        source = kwargs.get("source")
        if source is None:
            raise AssertionError("a module that FSDP manages needs a source")
        super().__init__(value, **kwargs)
        self.source = source

    def _wrap_source(self, attr_source: Any) -> Any:
        if isinstance(attr_source, (compat.FSDPNNModuleSource, compat.UnspecializedNNModuleSource)):
            return attr_source
        if compat.config.skip_fsdp_guards:
            return compat.FSDPNNModuleSource(attr_source)
        return compat.UnspecializedNNModuleSource(attr_source)
