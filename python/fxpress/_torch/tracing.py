"""Import torch's names for traces with proxies: `make_fx`, its modes, and fake tensors."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch._library import utils as library_utils
from torch._ops import OpOverload as OpOverload
from torch._ops import OpOverloadPacket as OpOverloadPacket
from torch._subclasses.fake_impls import fast_detach as fast_detach
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorConfig
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.autograd import forward_ad
from torch.export._trace import _export_for_training
from torch.fx import Tracer as Tracer
from torch.fx import traceback as fx_traceback
from torch.fx.experimental import proxy_tensor as proxy_tensor
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode as ProxyTorchDispatchMode
from torch.fx.experimental.proxy_tensor import (
    PythonKeyTracer,
    _ModuleStackTracer,
    _ProxyTensor,
    _should_save_eager_input_vals,
)
from torch.fx.experimental.proxy_tensor import fetch_sym_proxy as fetch_sym_proxy
from torch.fx.experimental.proxy_tensor import set_original_aten_op as set_original_aten_op
from torch.fx.experimental.proxy_tensor import track_tensor_tree as track_tensor_tree
from torch.fx.experimental.symbolic_shapes import uninteresting_files as uninteresting_files
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.fx.proxy import _STACK_TRACE_ANCHORS
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

trace_for_training = _export_for_training
trace_operators = proxy_tensor.make_fx
TRACERS = (PythonKeyTracer, _ModuleStackTracer)
STRICT_TRACER = _ModuleStackTracer
ProxyTensor = _ProxyTensor
# (file, name) of functions at which a node's stack trace may begin, besides those named `forward`.
STACK_TRACE_ANCHORS = _STACK_TRACE_ANCHORS
describe_tensor = _extract_tensor_metadata
without_tracing = proxy_tensor.disable_proxy_modes_tracing
preserves_meta = fx_traceback.has_preserved_node_meta
DisableTorchFunction = torch._C.DisableTorchFunction
DisableTorchDispatch = torch._C._DisableTorchDispatch
DisablePythonDispatcher = torch._C._DisablePythonDispatcher

# (owner, name) of the functions of torch that fxpress replaces while it traces.
DISPATCH = (library_utils, "handle_dispatch_mode")
PROXY_CALL = (proxy_tensor, "proxy_call")
SET_META = (proxy_tensor, "set_meta")
TRACK_TENSOR = (proxy_tensor, "track_tensor")
RUN_NODE = (symbolic_shapes.PropagateUnbackedSymInts, "run_node")
MAKE_PLACEHOLDERS = (Tracer, "create_args_for_root")
FIND_UNBACKED = (symbolic_shapes, "_free_unbacked_symbols_with_path")
CACHE_KEY = (FakeTensorMode, "_cache_key")
FAKE_OF_CACHE = (FakeTensorMode, "_get_output_tensor_from_cache_entry")
ENTRY_OF_OUTPUT = (FakeTensorMode, "_get_output_info_for_cache_entry")
dispatch_keys = torch._C._dispatch_key_set

# Operators that make_fx traces as other operators, or does not trace.
_SPECIAL = (
    torch.ops.aten.is_nonzero.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.prim.device.default,
)


def is_traced_plainly(function: OpOverload, pre_dispatch: bool) -> bool:
    """Return whether a call of an operator becomes exactly one node of that operator."""
    if type(function) is not OpOverload or torch.Tag.data_dependent_output in function.tags:
        return False
    if pre_dispatch and torch.Tag.dynamic_output_shape in function.tags:
        return False
    return (
        (pre_dispatch or not function._can_decompose())
        and function not in _SPECIAL
        and not function._schema.is_mutable
        and not _should_save_eager_input_vals(function)
    )


def may_write(packet: OpOverloadPacket) -> bool:
    """Return whether any overload of an operator writes to an argument that is not keyword-only."""
    schemas = [getattr(packet, name)._schema for name in packet.overloads()]
    arguments = [each for schema in schemas for each in schema.arguments]
    return any(each.is_write and not each.kwarg_only for each in arguments)


def function_modes() -> int:
    """Return the number of active TorchFunctionModes."""
    if not torch._C._is_torch_function_mode_enabled():
        return 0
    count: int = torch._C._len_torch_function_stack()
    return count


def has_foreign_function_modes() -> bool:
    """Return whether an active TorchFunctionMode is not torch's own."""
    stack = (
        torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())
    )
    return any(not type(mode).__module__.startswith("torch.") for mode in stack)


def has_only_fake_modes() -> bool:
    """Return whether the active dispatch modes, except the one of the trace, are fake modes."""
    stack = _get_current_dispatch_mode_stack()
    return all(type(mode) is FakeTensorMode for mode in stack)


def pre_dispatch_tracer() -> Any:
    """Return the tracer of this thread's pre-dispatch trace, or None."""
    mode = torch._ops.mode_stack_state_for_pre_dispatch().get(0)
    return None if mode is None else mode.tracer


def is_of_functorch(function: Any) -> bool:
    """Return whether a function belongs to `torch.func`, whose transforms wrap tensors."""
    return str(getattr(function, "__module__", "")).startswith("torch._functorch")


class AutogradState(NamedTuple):
    """Whether gradients and inference mode are enabled."""

    gradients: bool
    inference: bool


def autograd_state() -> AutogradState | None:
    """Return this thread's state; None if results may depend on more than it and the arguments.

    It is None under autocast, which copies a weight only at its first use, and under transforms of
    functorch, forward-mode derivatives and hooks for saved tensors, which observe operators.
    """
    if (
        torch._C._is_any_autocast_enabled()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
        or torch._C._autograd._top_saved_tensors_default_hooks(False) is not None
    ):
        return None
    return AutogradState(torch.is_grad_enabled(), torch.is_inference_mode_enabled())


excluding: Any = torch._C._ExcludeDispatchKeyGuard


def excluded_autograd() -> Any:
    """Return the excluded dispatch keys if `ADInplaceOrView` is one of them, else None."""
    excluded = torch._C._dispatch_tls_local_exclude_set()
    return excluded if excluded.has(torch._C.DispatchKey.ADInplaceOrView) else None


def state_of_cache_keys() -> tuple[Any, ...]:
    """Return the state of this thread that is part of every key in the cache of fake tensors."""
    is_tracing = proxy_tensor.get_proxy_mode() is not None
    defaults = (torch.get_default_dtype(), torch._C._get_default_device())
    return (*defaults, torch.is_inference_mode_enabled(), is_tracing)


def cache_misses() -> int:
    """Return how many results the cache of fake tensors did not have."""
    misses: int = FakeTensorMode.cache_misses
    return misses


def counted_gradients() -> int:
    """Return the number of autograd functions that this thread has created."""
    count: int = torch.autograd._get_sequence_nr()
    return count


def count_gradients(number: int) -> None:
    """Advance the number of autograd functions that this thread has created."""
    for _ in range(number):
        torch._C._functions.UndefinedGrad()


def kept_meta() -> dict[str, Any] | None:
    """Return the meta that new nodes get in a block of `preserve_node_meta`; None outside one."""
    if not fx_traceback.has_preserved_node_meta():
        return None
    meta: dict[str, Any] = fx_traceback.get_current_meta()
    return meta


def has_new_symbols(mode: FakeTensorMode) -> bool:
    """Return whether an operator has created symbols that torch expects in its outputs."""
    env = mode.shape_env
    return env is not None and bool(
        env.pending_fresh_unbacked_symbols or env.ignorable_fresh_unbacked_symbols
    )


def has_symbols(metadata: Any) -> bool:
    """Return whether an entry of torch's cache of fake tensors has symbolic numbers."""
    return type(metadata.storage_offset) is not int or not all(
        type(each) is int for each in (*metadata.shape, *metadata.stride)
    )


def may_be_unbacked(metadata: Any, env: Any) -> bool:
    """Return whether the numbers of an entry may have symbols whose values are not known."""
    return has_symbols(metadata) and env.unbacked_symint_counter > 0


def numbers_of_entry(
    metadata: Any, key: Any, env: Any
) -> tuple[list[Any], list[Any], int | torch.SymInt]:
    """Return the sizes, strides and storage offset that an entry of the cache describes."""

    def number(stored: Any) -> Any:
        return stored if type(stored) is int else stored.extract(key, env)

    shape = [number(each) for each in metadata.shape]
    stride = [number(each) for each in metadata.stride]
    return shape, stride, number(metadata.storage_offset)


def version_of(fake: FakeTensor) -> int:
    """Return the version of a fake tensor's ShapeEnv; a new fact about a symbol changes it."""
    version: int = fake.fake_mode.shape_env._version_counter
    return version


def is_watched() -> bool:
    """Return whether a mode or a debugging option has to observe the calls that a trace makes."""
    return bool(
        has_foreign_function_modes()
        or FakeTensorConfig.debug
        or getattr(torch.compiler.config, "compile_on_one_rank", False)
        or torch._export.config.detect_non_strict_fake_tensor_leaks
        or torch._functorch.config.fake_tensor_propagate_real_tensors
    )
