"""The names of Dynamo that the tracking of modules works with: see `_torch_compat`."""

from __future__ import annotations

import functools
from typing import Any, NoReturn, cast

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
from torch._dynamo.guards import install_guard as install_guard
from torch._dynamo.mutation_guard import GenerationTracker as GenerationTracker
from torch._dynamo.side_effects import AttributeMutationNew as AttributeMutationNew
from torch._dynamo.source import (
    AttrSource as AttrSource,
    ConstDictKeySource as ConstDictKeySource,
    DictGetItemSource as DictGetItemSource,
    FSDPNNModuleSource as FSDPNNModuleSource,
    GetItemSource as GetItemSource,
    NNModuleSource as NNModuleSource,
    TypeDictSource as TypeDictSource,
    TypeMROSource as TypeMROSource,
    UnspecializedNNModuleSource as UnspecializedNNModuleSource,
)
from torch._dynamo.symbolic_convert import InstructionTranslatorBase as Translator
from torch._dynamo.trace_rules import is_torch_inline_allowed as is_torch_inline_allowed
from torch._dynamo.utils import (
    enumerate_items_with_dict_position as enumerate_items_with_dict_position,
    get_custom_getattr as get_custom_getattr,
    get_fake_value as get_fake_value,
    is_lazy_module as is_lazy_module,
    is_namedtuple as is_namedtuple,
    is_safe_constant as is_safe_constant,
    istensor as istensor,
    nnmodule_has_hooks as nnmodule_has_hooks,
    object_has_getattribute as object_has_getattribute,
    proxy_args_kwargs as proxy_args_kwargs,
    raise_args_mismatch as raise_args_mismatch,
    set_example_value as set_example_value,
    unpatched_nn_module_call as unpatched_nn_module_call,
    unpatched_nn_module_call_impl as unpatched_nn_module_call_impl,
    unpatched_nn_module_getattr as unpatched_nn_module_getattr,
)
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

from fxpress._errors import UnsupportedError

# The classes override methods of Dynamo's by their names.
if "var_getattr" not in vars(torch_tracking.NNModuleVariable):
    raise UnsupportedError(f"torch {torch.__version__} tracks modules by other methods")

TorchNNModuleVariable = torch_tracking.NNModuleVariable
TorchUnspecializedNNModuleVariable = torch_tracking.UnspecializedNNModuleVariable
TorchUnspecializedBuiltinNNModuleVariable = torch_tracking.UnspecializedBuiltinNNModuleVariable
TorchFSDPManagedNNModuleVariable = torch_tracking.FSDPManagedNNModuleVariable
UserDefinedObjectVariable = variables.UserDefinedObjectVariable


def raise_observed(tx: Translator, kind: type[Exception], *args: str) -> NoReturn:
    """Raise in the traced program, which may catch it."""
    raise_observed_exception(kind, tx, args=list(args))


def guard_all(source: Source, names: tuple[str, ...], kind: Any) -> None:
    """Guards of one kind on attributes, with the stack of the traced program taken once."""
    stack = TracingContext.extract_stack()
    guards = [AttrSource(source, name).make_guard(kind) for name in names]
    for guard in guards:
        guard.user_stack = stack
    install_guard(*guards)


def guard_attribute_exists(source: Source, name: str) -> None:
    """A guard on what `hasattr` says."""
    install_guard(source.make_guard(functools.partial(GuardBuilder.HASATTR, attr=name)))


def forget_trackers(ours: tuple[type, ...]) -> None:
    """Drop what Dynamo remembers of its classes; it looks them up again when it needs them."""
    BuiltinVariable._binop_handlers.cache_clear()
    handlers = cast(dict[Any, Any], BuiltinVariable.call_function_handler_cache)
    for key in list(handlers):
        if any(kind in ours for kind in key if isinstance(kind, type)):
            handlers.pop(key, None)


def unlist_trackers(*trackers: type) -> None:
    """Take classes off the list of all kinds of variables, which torch shows to its developers."""
    for tracker in trackers:
        VariableTrackerMeta.all_subclasses.remove(tracker)
