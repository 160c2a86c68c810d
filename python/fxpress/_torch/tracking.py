"""Import torch's names for the tracking of modules in Dynamo."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias, cast

import torch
from torch._dynamo import config as config
from torch._dynamo import graph_break_hints as graph_break_hints
from torch._dynamo import variables as variables
from torch._dynamo.exc import ObservedAttributeError as ObservedAttributeError
from torch._dynamo.exc import UnspecializeRestartAnalysis as UnspecializeRestartAnalysis
from torch._dynamo.exc import Unsupported as Unsupported
from torch._dynamo.exc import handle_observed_exception as handle_observed_exception
from torch._dynamo.exc import raise_observed_exception
from torch._dynamo.exc import raise_type_error as raise_type_error
from torch._dynamo.exc import unimplemented as unimplemented
from torch._dynamo.guards import GuardBuilder as GuardBuilder
from torch._dynamo.guards import get_verbose_code_parts
from torch._dynamo.guards import install_guard as install_guard
from torch._dynamo.mutation_guard import GenerationTracker as GenerationTracker
from torch._dynamo.side_effects import AttributeMutationNew as AttributeMutationNew
from torch._dynamo.source import AttrSource as AttrSource
from torch._dynamo.source import ConstDictKeySource as ConstDictKeySource
from torch._dynamo.source import DictGetItemSource as DictGetItemSource
from torch._dynamo.source import FSDPNNModuleSource as FSDPNNModuleSource
from torch._dynamo.source import GetItemSource as GetItemSource
from torch._dynamo.source import NNModuleSource as NNModuleSource
from torch._dynamo.source import TypeDictSource as TypeDictSource
from torch._dynamo.source import TypeMROSource as TypeMROSource
from torch._dynamo.source import UnspecializedNNModuleSource as UnspecializedNNModuleSource
from torch._dynamo.symbolic_convert import InstructionTranslatorBase
from torch._dynamo.trace_rules import check as is_skipped
from torch._dynamo.trace_rules import is_torch_inline_allowed as is_torch_inline_allowed
from torch._dynamo.utils import (
    enumerate_items_with_dict_position as enumerate_items_with_dict_position,
)
from torch._dynamo.utils import get_custom_getattr as get_custom_getattr
from torch._dynamo.utils import get_fake_value as get_fake_value
from torch._dynamo.utils import is_lazy_module as is_lazy_module
from torch._dynamo.utils import is_namedtuple as is_namedtuple
from torch._dynamo.utils import is_safe_constant as is_safe_constant
from torch._dynamo.utils import istensor as istensor
from torch._dynamo.utils import nnmodule_has_hooks as nnmodule_has_hooks
from torch._dynamo.utils import object_has_getattribute as object_has_getattribute
from torch._dynamo.utils import proxy_args_kwargs as proxy_args_kwargs
from torch._dynamo.utils import raise_args_mismatch as raise_args_mismatch
from torch._dynamo.utils import set_example_value as set_example_value
from torch._dynamo.utils import unpatched_nn_module_call as unpatched_nn_module_call
from torch._dynamo.utils import unpatched_nn_module_call_impl as unpatched_nn_module_call_impl
from torch._dynamo.utils import unpatched_nn_module_getattr as unpatched_nn_module_getattr
from torch._dynamo.variables import nn_module as torch_tracking
from torch._dynamo.variables.base import NO_SUCH_SUBOBJ as NO_SUCH_SUBOBJ
from torch._dynamo.variables.base import ValueMutationNew as ValueMutationNew
from torch._dynamo.variables.base import VariableTracker as VariableTracker
from torch._dynamo.variables.base import VariableTrackerMeta
from torch._dynamo.variables.base import typestr as typestr
from torch._dynamo.variables.builder import SourcelessBuilder as SourcelessBuilder
from torch._dynamo.variables.builder import wrap_fx_proxy as wrap_fx_proxy
from torch._dynamo.variables.builtin import BuiltinVariable
from torch._dynamo.variables.functions import (
    invoke_and_store_as_constant as invoke_and_store_as_constant,
)
from torch._dynamo.variables.lazy import LazyVariableTracker as LazyVariableTracker
from torch._dynamo.variables.lists import SliceVariable as SliceVariable
from torch._dynamo.variables.tensor import SymNodeVariable as SymNodeVariable
from torch._guards import Guard as Guard
from torch._guards import Source as Source
from torch._guards import TracingContext

from fxpress import _native

Translator: TypeAlias = InstructionTranslatorBase
Args: TypeAlias = list[VariableTracker]
Kwargs: TypeAlias = dict[str, VariableTracker]
TorchNNModuleVariable: TypeAlias = torch_tracking.NNModuleVariable
TorchUnspecializedNNModuleVariable: TypeAlias = torch_tracking.UnspecializedNNModuleVariable
# The fields of an UnspecializedNNModuleVariable that are not attributes of the traced object.
PLAIN_FIELDS_OF_UNSPECIALIZED = frozenset(TorchUnspecializedNNModuleVariable._nonvar_fields)
TorchUnspecializedBuiltinNNModuleVariable: TypeAlias = (
    torch_tracking.UnspecializedBuiltinNNModuleVariable
)
TorchFSDPManagedNNModuleVariable: TypeAlias = torch_tracking.FSDPManagedNNModuleVariable
# torch's classes of variables for modules. fxpress derives its own from them.
TRACKED_MODULES = (TorchNNModuleVariable, TorchUnspecializedNNModuleVariable)
UserDefinedObjectVariable = variables.UserDefinedObjectVariable


def raise_observed(tx: Translator, kind: type[Exception], *args: str) -> NoReturn:
    """Raise an exception in the traced program, which may catch it."""
    raise raise_observed_exception(kind, tx, args=list(args))


def guard_all(source: Source, names: tuple[str, ...], kind: Any) -> None:
    """Install a guard of one kind on each attribute; extract the traced program's stack once."""
    stack = TracingContext.extract_stack()
    guards = [AttrSource(source, name).make_guard(kind) for name in names]
    for guard in guards:
        guard.user_stack = stack
    install_guard(*guards)


# The dicts of global module hooks, in the Python module that defines `torch.nn.Module`.
GLOBAL_HOOKS = (
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
)


def _has_no_traced_hooks(module: Any) -> bool:
    # Dynamo does not trace hooks of torch's tools, so such hooks may change after the trace.
    for name in GLOBAL_HOOKS:
        for hook in getattr(module, name).values():
            if not is_skipped(getattr(hook, "__func__", hook)):
                return False
    return True


def no_traced_hooks(builder: Any, guard: Guard) -> None:
    """Add a guard that fails if there are global hooks that Dynamo would trace."""
    code = f"no_traced_hooks({builder.arg_ref(guard)})"
    builder._set_guard_export_info(guard, [code], provided_func_name="NOT_NONE_MATCH")
    builder.get_guard_manager(guard).add_lambda_guard(
        _has_no_traced_hooks, get_verbose_code_parts(code, guard), guard.user_stack
    )


# Dynamo reads this name, and handles the guard like a check that the value is not None.
no_traced_hooks.__name__ = "NOT_NONE_MATCH"


def is_captured(tx: Translator) -> bool:
    """Return whether the traced graph is exported or stored in a file, and outlives the process."""
    compiler = getattr(tx.output.compiler_fn, "__qualname__", "")
    return compiler.startswith("_fullgraph_capture_frame.") or tx.output.package is not None


def size_hint(size: Any) -> int | None:
    """Return a size as an int: for a symbolic size, its hint, or None if it has no hint."""
    hint = size.node.hint if isinstance(size, torch.SymInt) else size
    return hint if isinstance(hint, int) else None


def guard_attribute_exists(source: Source, name: str) -> None:
    """Guard on whether the object at `source` has the attribute `name`."""
    install_guard(source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))


def tracker_caches(ours: tuple[type, ...]) -> list[Callable[[], object]]:
    """Return functions, implemented in C, that remove the classes `ours` from Dynamo's caches."""
    handlers = cast(dict[Any, Any], BuiltinVariable.call_function_handler_cache)
    return [
        BuiltinVariable._binop_handlers.cache_clear,
        functools.partial(_native.forget_keys, handlers, ours),
    ]


def unlist_trackers(*trackers: type) -> None:
    """Remove classes from torch's list of all variable classes, which only its tools read."""
    for tracker in trackers:
        VariableTrackerMeta.all_subclasses.remove(tracker)
