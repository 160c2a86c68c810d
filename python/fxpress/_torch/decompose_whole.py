"""Call torch's functions that trace an entire program to an inference graph or a joint graph."""

from __future__ import annotations

import contextlib
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._dynamo import config as dynamo_config
from torch._export import non_strict_utils
from torch._export import utils as export_utils
from torch._export.passes import _node_metadata_hook as metadata_hook
from torch._export.passes import lift_constants_pass
from torch._functorch._aot_autograd import input_output_analysis, subclass_parametrization
from torch._functorch.aot_autograd import aot_export_module
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._library.fake_class_registry import FakeScriptObject as FakeScriptObject
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export import _trace as export_trace
from torch.fx._utils import first_call_function_nn_module_stack
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.graph import _PyTreeCodeGen, _PyTreeInfo
from torch.fx.passes import runtime_assert

from fxpress._torch.symbols import TRACE

unwrap_subclasses: Callable[[torch.nn.Module], Any] = (
    subclass_parametrization.unwrap_tensor_subclass_parameters
)
make_state_fake: Callable[..., dict[str, Any]] = export_utils._fakify_params_buffers
gather_meta_of_state: Callable[..., dict[str, Any]] = export_utils._collect_param_buffer_metadata
give_meta_to_state: Callable[..., None] = export_utils._populate_param_buffer_metadata_to_new_gm
constants_as_attributes: Callable[..., Any] = export_utils._collect_and_set_constant_attrs
constants_as_buffers: Callable[..., set[str]] = export_utils._register_constants_as_buffers
buffers_as_constants: Callable[..., Any] = (
    export_utils._override_graph_signature_for_temp_registered_constants
)
mark_non_persistent: Callable[..., Any] = (
    export_utils._overwrite_signature_for_non_persistent_buffers
)
name_placeholders: Callable[..., None] = export_utils.placeholder_naming_pass
name_placeholders_of_bodies: Callable[..., None] = export_utils._name_hoo_subgraph_placeholders
lift_constants: Callable[..., dict[str, Any]] = lift_constants_pass._materialize_and_lift_constants
output_names: Callable[..., list[Any]] = input_output_analysis._graph_output_names


def fake_mode_of(module: torch.fx.GraphModule) -> Any:
    """Return the fake mode of a program's values, or a new one."""
    mode = export_utils._detect_fake_mode_from_gm(module)
    return FakeTensorMode(shape_env=ShapeEnv(), export=True) if mode is None else mode


def returns_a_tuple(module: torch.fx.GraphModule) -> None:
    """Change `module`, the result of `ep.module()`, to return a tuple, which a trace needs."""
    codegen = module.graph._codegen
    assert isinstance(codegen, _PyTreeCodeGen)
    spec = module._out_spec
    if spec.type not in (list, tuple):
        spec = pytree.treespec_tuple([spec])
    arguments = codegen.pytree_info.orig_args
    module.graph._codegen = _PyTreeCodeGen(_PyTreeInfo(arguments, module._in_spec, spec))
    module.recompile()


@contextlib.contextmanager
def tracing_of(mode: Any, examples: Any) -> Iterator[None]:
    """Run a block in torch's contexts for tracing a program whose inputs may be modules."""
    with (
        mode,
        non_strict_utils._enable_graph_inputs_of_type_nn_module(examples),
        tracing(TracingContext(mode)),
    ):
        yield


fake_objects: Callable[..., contextlib.AbstractContextManager[Any]] = (
    non_strict_utils._fakify_script_objects
)


def trace_inference(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    state: dict[str, Any],
    constants: Any,
    table: dict[Any, Any],
    custom_triton_ops: bool,
) -> Any:
    """Trace a module; return the graph, signature and constants of the result."""
    return export_trace._export_to_aten_ir(
        *(module, args, {}, state, constants),
        decomp_table=table,
        _prettify_placeholder_names=False,
        decompose_custom_triton_ops=custom_triton_ops,
    )


def verify_meta(module: torch.fx.GraphModule, signature: Any) -> None:
    """Raise SpecViolationError if a node's meta or a placeholder's name is invalid."""
    export_trace._verify_nn_module_stack(module)
    export_trace._verify_stack_trace(module)
    export_trace._verify_placeholder_names(module, signature)


def trace_joint(
    module: torch.fx.GraphModule,
    values: list[Any],
    table: dict[Any, Any],
    loss: int | None,
    custom_triton_ops: bool,
    overridden: contextlib.AbstractContextManager[None],
) -> tuple[torch.fx.GraphModule, Any]:
    """Trace a module, and its backward if `loss` is not None; return (module, signature)."""
    mode = detect_fake_mode(values)
    with contextlib.ExitStack() as stack:
        stack.enter_context(export_trace._ignore_backend_decomps())
        if mode is not None:
            stack.enter_context(mode)
        stack.enter_context(overridden)
        if not custom_triton_ops:
            stack.enter_context(export_trace._disable_custom_triton_op_functional_decomposition())
        traced, signature = aot_export_module(
            module,
            values,
            decompositions=table,
            trace_joint=loss is not None,
            output_loss_index=loss,
        )
    assert isinstance(traced, torch.fx.GraphModule)
    traced.graph.eliminate_dead_code()
    return traced, signature


class Names:
    """Renames nodes by torch's rules, so that no node has the name of a placeholder."""

    def __init__(self) -> None:
        self._new: dict[str, str] = {}
        self._highest: dict[str, int] = defaultdict(int)
        self._used: set[str] = set()

    def take(self, name: str) -> None:
        """Reserve the name of a placeholder."""
        self._new[name] = name
        export_utils._build_cache(name, self._highest, self._used)

    def give(self, name: str) -> str:
        """Return an unused name for a node, derived from `name`."""
        tables = (self._new, self._highest, self._used)
        given: str = export_utils._rename_without_collisions(*tables, name, name)
        return given


def assert_at_run_time(module: torch.fx.GraphModule, shape_env: Any) -> None:
    """Add nodes that assert the trace's assumptions about symbols."""
    if dynamo_config.do_not_emit_runtime_asserts or shape_env is None:
        return
    hook = functools.partial(metadata_hook._node_metadata_hook, metadata={"stack_trace": TRACE})
    with metadata_hook._set_node_metadata_hook(module, hook):
        stack = first_call_function_nn_module_stack(module.graph)
        runtime_assert.insert_deferred_runtime_asserts(
            module, shape_env, f"exported program: {stack}", export=True
        )


def shape_env_of(module: torch.fx.GraphModule) -> Any:
    """Return the ShapeEnv of the values in a graph; None if no value has a ShapeEnv."""
    values = [n.meta["val"] for n in module.graph.nodes if n.meta.get("val") is not None]
    mode = detect_fake_mode(values)
    if mode is not None:
        return mode.shape_env
    numbers = (value for value in values if isinstance(value, torch.SymInt))
    found = next(numbers, None)
    return None if found is None else found.node.shape_env


def is_joint(program: ExportedProgram, loss: int | None) -> bool:
    """Return whether a program is decomposed as a joint graph."""
    return loss is not None or program.graph_signature.backward_signature is not None
