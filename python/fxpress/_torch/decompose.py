"""Import torch's names for traces of single calls, and for decomposed programs."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import library
from torch._dispatch.python import enable_python_dispatcher
from torch._dynamo import compiled_autograd, eval_frame
from torch._dynamo import config as dynamo_config
from torch._dynamo import utils as dynamo_utils
from torch._export import utils as export_utils
from torch._functorch import aot_autograd
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors, functional_utils
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._library import utils as library_utils
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch._subclasses.functional_tensor import FunctionalTensor as FunctionalTensor
from torch._subclasses.functional_tensor import FunctionalTensorMode
from torch.export import _trace as export_trace
from torch.export import exported_program
from torch.export.decomp_utils import CustomDecompTable
from torch.fx import config as fx_config
from torch.fx import proxy as fx_proxy
from torch.fx import traceback as fx_traceback
from torch.fx.experimental import _config as symbol_config
from torch.fx.experimental import proxy_tensor, symbolic_shapes
from torch.fx.graph import _Namespace
from torch.fx.passes.shape_prop import TensorMetadata as TensorMetadata
from torch.fx.passes.shape_prop import _extract_tensor_metadata
from torch.fx.traceback import NodeSource, NodeSourceAction
from torch.utils import _pytree
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from fxpress._torch.fakes import META, attributes_of, fake_of, without_data
from fxpress._torch.fx import provenance_rules
from fxpress._torch.origins import fake_rules
from fxpress._torch.tracing import STACK_TRACE_ANCHORS
from fxpress._torch.tracing import without_tracing as without_tracing
from fxpress._torch.versions import features

_NO_WRITES = {"_keep_input_mutations": False} if features.functionalization_may_keep_writes else {}
Namespace = _Namespace
pytree = _pytree
Verifier = exported_program.Verifier
COPIED_META: tuple[str, ...] = tuple(fx_proxy._COPY_META_FIELDS)
ACCUMULATION = fx_traceback.GRADIENT_ACC_SPECIAL_STACK
PREFIXES: dict[Any, str] = export_utils.placeholder_prefixes
ParamInput = descriptors.ParamAOTInput
BufferInput = descriptors.BufferAOTInput
PlainInput = descriptors.PlainAOTInput
# Before each call of these operators, a separate pass of torch adds nodes that check the argument.
GUARDED_CONVERSIONS = (
    torch.ops.aten.to.device,
    torch.ops.aten.to.dtype,
    torch.ops.aten.to.dtype_layout,
)
tensor_metadata: Callable[[torch.Tensor], TensorMetadata] = _extract_tensor_metadata


def guards_code(shape_env: Any, module: torch.fx.GraphModule) -> list[str]:
    """Return the code of the guards that a program's ShapeEnv has collected."""
    if shape_env is None or not shape_env.guards:
        return []
    code: list[str] = exported_program._convert_guards_to_code(module)
    return code


def has_only_containers(spec: Any) -> bool:
    """Return whether all containers in a tree spec are Python's, not classes of the user."""
    if spec.is_leaf():
        return True
    return spec.type in _pytree.BUILTIN_TYPES and all(map(has_only_containers, spec.children()))


def has_modes() -> bool:
    """Return whether a mode is active that changes how torch traces."""
    return (
        fx_traceback.has_preserved_node_meta()
        or functorch_config.functionalize_rng_ops
        or _get_current_dispatch_mode() is not None
        or torch._C._len_torch_function_stack() > 0
        or torch.is_inference_mode_enabled()
    )


# (config module, names of settings) of settings that affect traces and that `surroundings` omits.
_SETTINGS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (symbol_config, tuple(symbol_config._config)),
    (dynamo_config, ("canonicalize_output_graph_node_order", "do_not_emit_runtime_asserts")),
    (inductor_config, ("emulate_precision_casts",)),
    (torch.compiler.config, ("compile_on_one_rank",)),
)


def changed_setting() -> str | None:
    """Return the name of a setting that a user changed and that affects traces, or None."""
    if getattr(fx_config, "do_not_emit_stack_traces", False):
        return "torch.fx.config.do_not_emit_stack_traces"
    for config, names in _SETTINGS:
        for name in names:
            entry = config._config.get(name)
            # `_is_default` cannot be used: it is False after `patch` has restored a setting.
            if entry is not None and getattr(config, name) != entry.default:
                return f"{config.__name__}.{name}"
    return None


def surroundings() -> tuple[Any, ...]:
    """Return a key of the global state of torch that a trace may depend on."""
    kinds = ("cpu", "cuda")
    return (
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        inductor_config.fallback_random,
        tuple((torch.is_autocast_enabled(k), torch.get_autocast_dtype(k)) for k in kinds),
        torch.cuda.is_available(),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.backends.cuda.mem_efficient_sdp_enabled(),
        torch.backends.cuda.math_sdp_enabled(),
        torch.backends.cuda.cudnn_sdp_enabled(),
        functorch_config.get_hash(),
        hash(frozenset(library._impls)),  # changes when Python code registers a kernel
        fake_rules(),
    )


def traits_of(mode: Any) -> tuple[Any, ...]:
    """Return a key of the properties of a fake mode that a trace may depend on."""
    return (
        mode.shape_env is None,
        mode.allow_fallback_kernels,
        mode.allow_non_fake_inputs,
        mode.allow_meta,
        mode.fake_tensor_converter.export,
        mode.static_shapes,
        mode.cache_enabled,
    )


def is_of_torch(operator: Any) -> bool:
    """Return whether an operator is torch's; users may register new kernels for other operators."""
    return not isinstance(operator, OpOverload) or library_utils.is_builtin(operator)


def is_view(target: Any) -> bool:
    """Return whether an operator returns a view of its input, by its schema."""
    return isinstance(target, OpOverload) and target.is_view


def may_write(target: Any) -> bool:
    """Return whether an operator may write to its arguments. Schemas of batch norms hide writes."""
    if not isinstance(target, OpOverload):
        return isinstance(target, torch._ops.HigherOrderOperator)
    names = {argument.name for argument in target._schema.arguments}
    return target._schema.is_mutable or "running_mean" in names


def is_composite(target: Any) -> bool:
    """Return whether an operator has a composite kernel, which calls other operators."""
    kind = torch._C.DispatchKey.CompositeImplicitAutograd
    return isinstance(target, OpOverload) and torch._C._dispatch_has_kernel_for_dispatch_key(
        target.name(), kind
    )


def called_in_forward() -> bool:
    """Return whether the call stack has a function at which torch starts stack traces of nodes."""
    frame = sys._getframe()
    while frame is not None:
        code = frame.f_code
        if code.co_name == "forward" or (code.co_filename, code.co_name) in STACK_TRACE_ANCHORS:
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


@contextlib.contextmanager
def _state_of_a_trace(fake_mode: Any, custom_triton_ops: bool) -> Iterator[FunctionalTensorMode]:
    """Run a block in the state in which torch traces a program to decompose it."""
    with contextlib.ExitStack() as stack:
        enter = stack.enter_context
        enter(fake_mode)
        enter(tracing(TracingContext(fake_mode)))
        enter(export_trace._ignore_backend_decomps())
        enter(export_utils._compiling_state_context())
        if not custom_triton_ops:
            enter(export_trace._disable_custom_triton_op_functional_decomposition())
        enter(torch.no_grad())
        enter(compiled_autograd._disable())
        enter(torch.autograd.set_multithreading_enabled(False))
        enter(dynamo_utils.preserve_rng_state())
        enter(dynamo_utils._disable_saved_tensors_hooks_during_tracing())
        enter(enable_python_dispatcher())
        functional = enter(
            FunctionalTensorMode(
                pre_dispatch=False, export=False, _allow_token_discovery=True, **_NO_WRITES
            )
        )
        if features.nested_compilations_are_eager:
            enter(eval_frame._use_eager_on_nested_compile())
        yield functional


class _Traced(BaseException):
    """The exception that ends a trace before torch builds a module, which would be unused."""


def trace(
    body: Callable[[Any, Any], object],
    fake_mode: Any,
    table: dict[Any, Callable[..., Any]],
    custom_triton_ops: bool,
) -> None:
    """Call `body(tracer, functional mode)` in the contexts in which torch decomposes programs."""
    decompositions = {**aot_autograd.aot_autograd_decompositions, **table}

    def run() -> None:
        mode = proxy_tensor.get_proxy_mode()
        assert mode is not None
        below = torch._C._ExcludeDispatchKeyGuard(
            torch._C.DispatchKeySet(torch._C.DispatchKey.Functionalize)
        )
        with (
            proxy_tensor.maybe_enable_thunkify(),
            below,
            proxy_tensor.maybe_disable_thunkify(),
            fx_traceback.preserve_node_meta(),
            warnings.catch_warnings(),
        ):
            warnings.filterwarnings("ignore", "Anomaly Detection has been enabled.")
            with torch.autograd.detect_anomaly(check_nan=False):
                body(mode.tracer, functional)
        raise _Traced

    run._orig_mod = torch.nn.Module()  # type: ignore[attr-defined]
    with _state_of_a_trace(fake_mode, custom_triton_ops) as functional:
        traced = proxy_tensor.make_fx(
            run, decomposition_table=decompositions, record_module_stack=True
        )
        with contextlib.suppress(_Traced):
            traced()


def with_meta_of(node: Any) -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which new nodes get the meta that torch copies from `node`."""
    block: contextlib.AbstractContextManager[None] = fx_traceback.set_current_meta(
        node, INTERPRETER
    )
    return block


# The method of torch's interpreter that runs a node, and the interpreter's name in `from_node`.
RUN_NODE = (symbolic_shapes.PropagateUnbackedSymInts, "run_node")
INTERPRETER = "Interpreter_PropagateUnbackedSymInts"
TRACED = provenance_rules(INTERPRETER, NodeSourceAction.CREATE)


def track(tensor: torch.Tensor, tracer: Any, name: str) -> Any:
    """Create a placeholder for a tensor in the graph of a trace; return the node."""
    with without_stack():
        proxy = tracer.create_proxy("placeholder", name, (), {})
    proxy_tensor.track_tensor(tensor, proxy, constant=None, tracer=tracer)
    return proxy.node


def node_of(tensor: torch.Tensor, tracer: Any) -> tuple[Any, Any]:
    """Return a traced tensor's node, and its constant value or None; (None, None) if untraced."""
    slot = proxy_tensor.get_proxy_slot(tensor, tracer, None)
    return (None, None) if slot is None else (slot.proxy.node, slot.constant)


def functional(tensor: torch.Tensor, requires_grad_like: torch.Tensor | None) -> Any:
    """Wrap a fake tensor in a functional tensor; both require gradients as `requires_grad_like`."""
    wrapped = functional_utils.to_fun(tensor)
    if requires_grad_like is not None:
        torch._mirror_autograd_meta_to(requires_grad_like, wrapped.elem)
        torch._mirror_autograd_meta_to(requires_grad_like, wrapped)
    return wrapped


def inner(wrapped: FunctionalTensor) -> Any:
    """Return the fake tensor in a functional tensor."""
    return functional_utils.from_fun(wrapped)


def was_changed(wrapped: FunctionalTensor, before: torch.Tensor) -> bool:
    """Return whether a call changed the input `wrapped`; `before` was its inner tensor."""
    return (
        functional_utils.has_data_mutation(wrapped)
        or torch._functionalize_has_metadata_mutation(wrapped.elem)
        or torch._functionalize_was_storage_changed(wrapped.elem)
        or inner(wrapped) is not before
    )


def has_only_new_data(wrapped: FunctionalTensor) -> bool:
    """Return whether a call wrote to a tensor, and changed neither its metadata nor its storage."""
    return functional_utils.has_data_mutation(wrapped) and not (
        torch._functionalize_has_metadata_mutation(wrapped.elem)
        or torch._functionalize_was_storage_changed(wrapped.elem)
    )


def is_base(wrapped: FunctionalTensor) -> bool:
    """Return whether a functional tensor is not a view of another functional tensor."""
    return bool(wrapped.is_base_tensor())


def was_written(wrapped: FunctionalTensor) -> bool:
    """Return whether the storage of a functional tensor was written."""
    return torch._functionalize_mutation_counter(wrapped.elem) > 0  # type: ignore[no-any-return]


def have_own_storages(result: Any, given: list[Any]) -> bool:
    """Return whether the tensors in a result share no storage with each other or with `given`."""
    tensors = [t for t in pytree.tree_leaves(result) if type(t) is FunctionalTensor]
    layers = ((tensors, given), ([t.elem for t in tensors], [t.elem for t in given]))
    for new, old in layers:
        places = [tensor.untyped_storage()._cdata for tensor in new]
        taken = {tensor.untyped_storage()._cdata for tensor in old}
        if len({*places, *taken}) != len(places) + len(taken):
            return False
    return True


class Candidates:
    """Records, for each name in a trace, the name that was proposed to `Namespace.create_name`."""

    def __init__(self, tracer: Any) -> None:
        self._namespace = tracer.graph._graph_namespace
        self._candidates: dict[str, str] = {}
        create_name = self._namespace.create_name

        def note_candidate(candidate: str, obj: Any) -> str:
            name: str = create_name(candidate, obj)
            self._candidates[name] = candidate
            return name

        self._namespace.create_name = note_candidate

    def of(self, name: str) -> str:
        """Return the proposed name for which `create_name` returned `name`."""
        return self._candidates[name]

    def stop(self) -> None:
        """Stop recording."""
        del self._namespace.create_name


def tracer() -> Any:
    """Return the tracer of this thread's trace, or None."""
    mode = proxy_tensor.get_proxy_mode()
    return None if mode is None else mode.tracer


def set_node(tensor: torch.Tensor, node: Any, of: Any) -> None:
    """Make `node` the node that represents a tensor in the trace of the tracer `of`."""
    traced = proxy_tensor._ProxyTensor(torch.fx.Proxy(node, of), None)
    proxy_tensor.set_proxy_slot(tensor, of, traced)


class Fakes:
    """Builds fake tensors of one fake mode from their metadata."""

    def __init__(self, mode: Any) -> None:
        self.mode = mode
        self._state: dict[torch.device, dict[str, Any]] = {}

    def tensor(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        offset: int,
        storage: Any,
        requires_grad: bool,
    ) -> Any:
        """Return a fake tensor, in `storage` or, if it is None, in a new storage."""
        plain = without_data(shape, strides, offset, dtype, storage)
        return fake_of(plain, requires_grad, device, self.attributes(device))

    def attributes(self, device: torch.device) -> dict[str, Any]:
        """Return the attributes of fake tensors on a device."""
        state = self._state.get(device)
        if state is None:
            state = self._state[device] = attributes_of(self.mode, device)
        return state

    def storage(self, nbytes: Any, real: torch.Tensor | None) -> Any:
        """Return a new meta storage or, if `real` is not None, the storage of its fake tensors."""
        if type(nbytes) is not int:  # UntypedStorage would specialize the symbol
            return torch.empty((nbytes,), dtype=torch.uint8, device=META).untyped_storage()
        if real is None:
            return torch.UntypedStorage(nbytes, device=META)
        converter = self.mode.fake_tensor_converter.meta_converter
        number = converter.describer.get_storage_id(real.untyped_storage())
        known = converter.storage_memo.get(number)
        if known is None:
            known = torch.UntypedStorage(nbytes, device=META)
            converter.storage_memo[number] = known
        return known


# The objects of torch that native code uses to create fake tensors, by role.
TOOLS: dict[str, Any] = {"empty": torch.empty, "empty_strided": torch.empty_strided, "meta": META}
outside_of_modes = _disable_current_modes
DisableTorchFunction = torch._C.DisableTorchFunction


def _caches(mode: Any) -> list[dict[Any, Any]]:
    env = mode.shape_env
    tables = (vars(env).get(name) for name in ("fake_tensor_cache", "_symop_cache")) if env else ()
    return [FakeTensorMode.cache, *(table for table in tables if table is not None)]


def cached_results(mode: Any) -> list[dict[Any, Any]]:
    """Return copies of the caches of a fake mode and its shape environment."""
    return [dict(cache) for cache in _caches(mode)]


def restore_cached_results(mode: Any, cached: list[dict[Any, Any]]) -> None:
    """Restore the caches of a fake mode and its shape environment."""
    for cache, before in zip(_caches(mode), cached, strict=True):
        cache.clear()
        cache.update(before)


def stays(node: torch.fx.Node) -> bool:
    """Return whether torch keeps a node without users when it traces a program."""
    return bool(node.is_impure(inductor_config.fallback_random))


def source_in_trace(node: Any) -> NodeSource:
    """Return the `from_node` entry of a node that torch's interpreter creates from `node`."""
    return NodeSource(node, INTERPRETER, [NodeSourceAction.CREATE])


class Traced:
    """Stands in for a node of the graph of `ep.module()`, which fxpress does not build."""

    __slots__ = ("graph", "meta", "name", "target")

    def __init__(self, name: str, target: Any, graph: Any, meta: dict[str, Any]) -> None:
        self.name, self.target, self.graph, self.meta = name, target, graph, meta


def without_stack() -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which new nodes of a trace get no stack traces."""
    return with_meta_of(_NO_NODE)


_NO_NODE = Traced("", "", None, {"stack_trace": "none"})


EAGER_INPUTS = "eager_input_vals"


def set_eager_inputs(node: torch.fx.Node) -> None:
    """Store the values of a node's inputs in its meta, for an operator that needs exact strides."""

    def value_of(argument: Any) -> Any:
        is_node = isinstance(argument, torch.fx.Node) and "val" in argument.meta
        return proxy_tensor.extract_val(argument.meta["val"]) if is_node else None

    inputs = (node.args, node.kwargs)
    node.meta[EAGER_INPUTS] = tuple(torch.fx.node.map_aggregate(inputs, value_of))


def next_sequence_number() -> int | None:
    """Return the sequence number that torch would give the next node."""
    return fx_proxy._get_seq_nr() if hasattr(fx_proxy, "_get_seq_nr") else None


def append(
    graph: torch.fx.Graph,
    name: str,
    op: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> torch.fx.Node:
    """Append a node with a name that is already in the graph's namespace."""
    node = torch.fx.Node(graph, name, op, target, args, kwargs, None)
    graph._graph_namespace._obj_to_name[node] = name
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    return node


outside_of_fake_mode: Callable[[], contextlib.AbstractContextManager[Any]] = unset_fake_temporarily


def materialized(table: dict[Any, Callable[..., Any]]) -> dict[Any, Callable[..., Any]]:
    """Return a decomposition table as a new dict; complete a CustomDecompTable first."""
    return table.materialize() if isinstance(table, CustomDecompTable) else dict(table)
