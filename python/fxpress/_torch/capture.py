"""Import torch's names for Dynamo's capture, its tracers and its guards."""

from __future__ import annotations

import contextlib
import copy
import dis
import functools
import logging
import types
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

import torch
from torch._dynamo import functional_export as torch_capture
from torch._dynamo.convert_frame import CaptureOutput as CaptureOutput
from torch._dynamo.convert_frame import fullgraph_capture as fullgraph_capture
from torch._dynamo.convert_frame import get_traced_fn as get_traced_fn
from torch._dynamo.decorators import disable
from torch._dynamo.eval_frame import argument_names as argument_names
from torch._dynamo.eval_frame import check_user_input_output
from torch._dynamo.exc import UserErrorType
from torch._dynamo.guards import uninteresting_files as uninteresting_files
from torch._dynamo.output_graph import OutputGraph, graph_code_log
from torch._dynamo.source import AttrSource as AttrSource
from torch._dynamo.source import GetItemSource as GetItemSource
from torch._dynamo.source import LocalSource as LocalSource
from torch._dynamo.utils import dynamo_timed, get_metrics_context
from torch._export.utils import _compiling_state_context
from torch._guards import TracingContext
from torch._guards import detect_fake_mode as detect_fake_mode
from torch._logging._internal import trace_log
from torch.export._unlift import _get_input_paths, _replace_sources
from torch.export.dynamic_shapes import _RelaxedConstraint
from torch.fx import Graph
from torch.fx import proxy as fx_proxy
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.symbolic_shapes import (
    ConstraintViolationError as ConstraintViolationError,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, StatelessSymbolicContext
from torch.fx.graph_module import _assign_attr, _del_attr, _get_attr, _WrappedCall
from torch.nn.modules import module as nn_module
from torch.utils._traceback import format_frame as format_frame
from torch.utils._traceback import shorten_filename as shorten_filename

from fxpress._base.replacement import Replacement
from fxpress._torch.fx import NodeSourceAction, provenance_rules
from fxpress._torch.versions import features


@functools.cache
def _empty_code() -> Any:
    """Return the code of a graph without nodes."""
    graph = Graph()
    graph.output(None)
    return graph.python_code("self")


def _compile(original: Any, self: OutputGraph, *args: Any, **kwargs: Any) -> Any:
    """Run `OutputGraph.compile_and_call_fx_graph`, but generate no code for its graph module."""
    graph = self.graph
    vars(graph)["python_code"] = lambda *_, **__: _empty_code()
    try:
        return original(self, *args, **kwargs)
    finally:
        vars(graph).pop("python_code", None)


_compilation = Replacement(OutputGraph, "compile_and_call_fx_graph", _compile)


def unwritten_code() -> contextlib.AbstractContextManager[None]:
    """Return a context manager in which captured modules get no code; the caller generates it."""
    if graph_code_log.isEnabledFor(logging.DEBUG) or traces_are_written():
        return contextlib.nullcontext()
    return _compilation.block()


_Function = TypeVar("_Function", bound=Callable[..., Any])

# Dynamo recognizes the result of a traced frame by the identity of this class.
ExportTracerOutput = torch_capture.ExportTracerOutput
EXPORT_ROOT_REPLACEMENTS = torch_capture.EXPORT_ROOT_REPLACEMENTS
compiling_state = _compiling_state_context
DisableTorchDispatch = torch._C._DisableTorchDispatch
WrappedCall = _WrappedCall
get_attribute = _get_attr
set_attribute = _assign_attr  # parameters: value, module, path
delete_attribute = _del_attr
log = torch_capture.log
config = torch._dynamo.config
# The type of a constraint that only allows a dimension to vary, without a range of sizes.
RelaxedConstraint = _RelaxedConstraint
OPERATORS = (torch._ops.OpOverloadPacket, torch._ops.OpOverload)
OpOverload = torch._ops.OpOverload
# `nn.Module.__call__` calls this function. In newer torch, it returns False while tracing pauses.
_is_tracing: Callable[[], object] = (
    torch._C._is_tracing if features.calls_check_is_tracing else torch._C._get_tracing_state
)
# The `pass_name` in the NodeSource of the nodes that torch's DynamoGraphTransformer creates.
TRANSFORMER_PASS = "Interpreter_DynamoGraphTransformer"
# `run_node` copies these keys of `Node.meta` to a new node; a tracer copies further keys.
VALUE_KEYS = ("val", "example_value", "unbacked_bindings")


def untraced(function: _Function) -> _Function:
    """Return a version of the function that Dynamo does not trace."""
    reason = "do not trace internal dynamo graph capture"
    return cast(_Function, disable(reason=reason)(function))


def check_inputs(leaves: list[Any]) -> None:
    """Raise UserError for leaves that cannot be inputs of a graph."""
    check_user_input_output(leaves, UserErrorType.INVALID_INPUT)


def reset() -> None:
    """Discard all compiled code and Dynamo's state."""
    torch._dynamo.reset()


def settings(**values: Any) -> contextlib.AbstractContextManager[Any]:
    """Return a context manager in which Dynamo's settings have these values."""
    return cast(contextlib.AbstractContextManager[Any], config.patch(**values))


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Record the time of a `with` block in Dynamo's metrics, as "fullgraph_capture"."""
    with get_metrics_context(), dynamo_timed("fullgraph_capture"):
        yield


def does_more_than_forward(module: torch.nn.Module) -> bool:
    """Return whether a call of a module runs more than `forward` and its own forward hooks."""
    return bool(
        module._backward_hooks
        or module._backward_pre_hooks
        or module._compiled_call_impl is not None
        or nn_module._has_any_global_hook()
        or _is_tracing()
    )


def with_shape_guards_only(captured: Any) -> Any:
    """Copy a capture, without guards on anything but sizes, to check constraints on sizes."""
    made = copy.copy(captured)
    made.output_graph = copy.copy(captured.output_graph)
    shapes = [g for g in made.output_graph.guards if g.create_fn_name() == "SHAPE_ENV"]
    made.output_graph._guards = shapes
    return made


def traces_are_written() -> bool:
    """Return whether torch writes its structured trace logs (TORCH_TRACE) into files."""
    # A handler without a folder writes nothing: torch removes this handler at the first record.
    return any(getattr(each, "root_dir", "") is not None for each in trace_log.handlers)


_GUARD_LOGS = ("", ".__guards", ".__verbose_guards")


def guards_are_logged() -> bool:
    """Return whether a logger of torch, or the structured trace log, records new guards."""
    logs = (logging.getLogger(f"torch._dynamo.guards{name}") for name in _GUARD_LOGS)
    return traces_are_written() or any(each.isEnabledFor(logging.DEBUG) for each in logs)


def fake_input(fake_mode: Any, tensor: torch.Tensor, dynamic: set[int]) -> torch.Tensor:
    """Return a fake tensor for a tensor; the sizes of the dimensions in `dynamic` are symbols."""
    sizes = [DimDynamic.DYNAMIC if d in dynamic else DimDynamic.STATIC for d in range(tensor.dim())]
    context = StatelessSymbolicContext(dynamic_sizes=sizes, constraint_sizes=[None] * tensor.dim())
    return cast(torch.Tensor, fake_mode.from_tensor(tensor, symbolic_context=context))


def with_input_names(text: str, args: Any, kwargs: Any, signature: Any) -> str:
    """Return a message in which the user's names of inputs replace Dynamo's sources."""
    return cast(str, _replace_sources(text, _get_input_paths((args, kwargs), signature)))


def bound_spec(
    dynamic_shapes: Any, called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, list[Any], Any] | None:
    """If `dynamic_shapes` is a spec, bind it; return (ShapesSpec, flat inputs, in_spec) or None."""
    if not features.shapes_specs:
        return None
    from torch.fx.experimental._spec_binding import _bind_spec_to_args
    from torch.fx.experimental.dynamic_spec import ParamsSpec, ShapesSpec

    if not isinstance(dynamic_shapes, (ParamsSpec, ShapesSpec)):
        return None
    whole = dynamic_shapes if isinstance(dynamic_shapes, ShapesSpec) else ShapesSpec(dynamic_shapes)
    leaves, flat_inputs, in_spec = _bind_spec_to_args(called, args, kwargs, whole)
    # Dynamo traces a function whose only parameter is `*args`, the flat inputs.
    flat = ShapesSpec(ParamsSpec({"*args": leaves}), assumptions=whole._assumptions or None)
    return flat, flat_inputs, in_spec


def tracing_context(fake_mode: Any, tensor_to_context: Any) -> Any:
    context = TracingContext(fake_mode)
    context.tensor_to_context = tensor_to_context
    return context


def birth_rules() -> dict[str, object]:
    """Return the fields of `BirthRules` in C++: torch's rules for the meta of new nodes."""
    keeps_sequence = fx_traceback._is_preserving_node_seq_nr()
    overlay: dict[str, Any] = {}
    if (replayed := fx_traceback.get_current_replay_node()) is not None:
        overlay["is_functional_regenerated"] = True
        for key in ("custom", "stack_trace", *(() if keeps_sequence else ("seq_nr",))):
            if key in replayed.meta:
                overlay[key] = replayed.meta[key]
    return {
        "fields": tuple(fx_proxy._COPY_META_FIELDS),
        "outer": dict(fx_traceback.get_current_meta()),
        "sequence": None if keeps_sequence else torch.autograd._get_sequence_nr() - 1,
        "overlay": overlay,
        "marker": fx_traceback.GRADIENT_ACC_SPECIAL_STACK,
        "provenance": provenance_rules(TRANSFORMER_PASS, NodeSourceAction.CREATE),
        "copy": copy.copy,
    }


def _line_of(code: types.CodeType, name: str) -> int:
    """Return the line on which a function's code first uses an attribute."""
    offset = next(i.offset for i in dis.get_instructions(code) if i.argval == name)
    return next(
        line for start, end, line in code.co_lines() if start <= offset < end and line is not None
    )


def as_traced_by_torch(forward: _Function) -> _Function:
    """Give a `forward` the file and lines of torch's `forward`, for stack traces of nodes."""
    torchs = torch_capture.ModuleToTrace.forward.__code__
    code = cast(types.FunctionType, forward).__code__
    shift = _line_of(torchs, "_export_root") - _line_of(code, "_export_root")
    cast(types.FunctionType, forward).__code__ = code.replace(
        co_filename=torchs.co_filename, co_firstlineno=code.co_firstlineno + shift
    )
    return forward
