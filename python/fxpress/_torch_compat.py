"""The one place that knows torch's private names.

Everything that fxpress uses of torch beyond its documented interface is looked up here, under a
name that says what it is for; support for other torch versions differs here and nowhere else.
"""

from __future__ import annotations

import builtins
import collections
import copy
import functools
import importlib
import logging
import operator
import re
import types
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar, cast

import sympy
import torch
import torch.fx
from torch._export import utils as export_utils
from torch._export.passes import _node_metadata_hook
from torch._higher_order_ops.effects import with_effects
from torch._library import opaque_object
from torch._library.fake_class_registry import FakeScriptObject as FakeScriptObject
from torch._logging import trace_structured
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, _tree_utils
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.export.graph_signature import InputKind
from torch.fx import _graph_pickler
from torch.fx import _lazy_graph_module as lazy_graph_module
from torch.fx import _pytree as _fx_pytree
from torch.fx import graph as fx_graph
from torch.fx import graph_module as fx_graph_module
from torch.fx import node as fx_node
from torch.fx import traceback as fx_traceback
from torch.fx._compatibility import compatibility as fx_compatibility
from torch.fx._symbolic_trace import is_fx_symbolic_tracing as is_fx_symbolic_tracing
from torch.fx._utils import lazy_format_graph_code as lazy_format_graph_code
from torch.fx.experimental import _config as fx_config
from torch.fx.experimental.symbolic_shapes import ShapeEnv, free_symbols
from torch.fx.graph import PythonCode as PythonCode
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.nn.modules import module as nn_module
from torch.utils import _pytree
from torch.utils._python_dispatch import (
    is_traceable_wrapper_subclass as is_traceable_wrapper_subclass,
)
from torch.utils._pytree import GetAttrKey as GetAttrKey
from torch.utils._pytree import SequenceKey as SequenceKey
from torch.utils._pytree import TreeSpec as TreeSpec

_T = TypeVar("_T")

# Newer versions have another name for it, and log a warning for the older one.
is_opaque_value: Callable[[Any], bool] = (
    getattr(opaque_object, "is_custom_class_obj", None) or opaque_object.is_opaque_value
)

pytree = _pytree
fx_pytree = _fx_pytree

# The key of nn_module_stack for nodes that were traced outside of any module.
EMPTY_NN_MODULE_STACK: str = _node_metadata_hook._EMPTY_NN_MODULE_STACK_KEY

LazyGraphModule: type[torch.fx.GraphModule] = lazy_graph_module._LazyGraphModule


def compatibility(*, is_backward_compatible: bool) -> Callable[[_T], _T]:
    """Registers a public object in torch.fx's table of stable or unstable interfaces."""
    return cast(Callable[[_T], _T], fx_compatibility(is_backward_compatible=is_backward_compatible))


def uses_lazy_graph_modules() -> bool:
    """Whether torch's own flag asks for lazy GraphModules (`_use_lazy_graph_module`)."""
    return issubclass(lazy_graph_module._get_graph_module_cls(), LazyGraphModule)


def built_for() -> str | None:
    """The torch version that `_aten_ext` was compiled against; None when it was not built."""
    try:
        from fxpress import _build_torch  # written by the build
    except ImportError:
        return None
    return _build_torch.TORCH_VERSION


# ---- generated code ----

# A GraphModule as this torch makes it: the pattern for classes and instances that we fill in.
_PATTERN = torch.fx.GraphModule({}, torch.fx.Graph())
_PATTERN_CLASS = type(_PATTERN)
# The very function that torch installs: Dynamo recognizes and skips it by its file.
_CALL_WRAPPED = vars(_PATTERN_CLASS)["__call__"]
CLASS_QUALNAME: str = _PATTERN_CLASS.__qualname__
CLASS_MODULE: str = _PATTERN_CLASS.__module__
CODE_ATTRIBUTES = ("_code", "_lineno_map", "_prologue_start")
# What `recompile` leaves in the instance's state, in its order.
RECOMPILED_STATE = ("_in_spec", "_out_spec", *CODE_ATTRIBUTES)
PENDING = "_fxpress_pending"  # on a class whose code is deferred: weak reference to its instance
GRAPH_SLOT = "_graph"


def wrapped_call(cls: type) -> object:
    """What `GraphModule.recompile` stores as `_wrapped_call` on a class without own `__call__`."""
    return fx_graph_module._WrappedCall(cls, None)


def forward_from_source(source: str, namespace: dict[str, Any], graph: torch.fx.Graph) -> Any:
    """Compile generated source and return its function, known to `linecache` as torch's are."""
    return fx_graph_module._forward_from_src(source, namespace, getattr(graph, "_co_fields", {}))


def forward_from_code(
    pattern: types.CodeType,
    names: tuple[str, ...],
    source: str,
    namespace: dict[str, Any],
    graph: torch.fx.Graph,
) -> Any:
    """The function of generated source whose code is known but for the names of its locals."""
    namespace = {**namespace, "__builtins__": vars(builtins)}
    key = fx_graph_module._loader.cache(source, namespace, getattr(graph, "_co_fields", {}))
    code = pattern.replace(co_filename=key, co_varnames=names)
    return types.FunctionType(code, namespace, "forward")


def recompile_aside(graph: torch.fx.Graph) -> tuple[PythonCode, Any, dict[str, Any]]:
    """torch's `recompile` without a trace: the code, the function, the attributes that it sets."""
    module = torch.fx.GraphModule.__new__(torch.fx.GraphModule)
    torch.nn.Module.__init__(module)
    module._graph = graph
    code = module.recompile()
    state = {name: vars(module)[name] for name in RECOMPILED_STATE if name in vars(module)}
    return code, vars(type(module))["forward"], state


def enriches_profiler_metadata() -> bool:
    """Whether generated source must carry profiler marks, which only torch's generator writes."""
    return bool(fx_config.enrich_profiler_metadata)


def shows_meta_in_source() -> bool:
    """Whether FX_GRAPH_SHOW_META asks torch's generator to print metadata into the source."""
    import os

    return os.environ.get("FX_GRAPH_SHOW_META", "0") == "1"


class TargetKind(IntEnum):
    """How generated source refers to a function; the order is that of `fx/codegen_target.h`."""

    OPERATOR = 0
    INPLACE = 1
    QUALIFIED = 2
    GLOBAL = 3


def describe_target(target: Callable[..., Any]) -> tuple[int, str]:
    """Kind and text of a function in generated source, by the rules of `torch.fx.graph`."""
    if not callable(target):
        raise AssertionError(f"Expected node.target to be callable, got {type(target)}")
    if getattr(target, "__module__", "") == "_operator":
        name = target.__name__
        if name in fx_graph.magic_methods:
            return TargetKind.OPERATOR, fx_graph.magic_methods[name]
        if name in fx_graph.inplace_methods:
            return TargetKind.INPLACE, fx_graph.inplace_methods[name]
    qualified = fx_node._get_qualified_name(target)
    if fx_graph._is_from_torch(target) and target != torch.device:
        return TargetKind.QUALIFIED, qualified
    return TargetKind.GLOBAL, qualified


@functools.lru_cache(maxsize=4)
def _base_globals(_registered: int) -> dict[str, Any]:
    return dict(torch.fx.Graph().python_code("self").globals)


def base_globals() -> dict[str, Any]:
    """The globals that every generated source has: those of an empty graph."""
    return _base_globals(len(fx_graph._custom_builtins))


def parse_name(name: str) -> tuple[str, str, str]:
    """Candidate, base and number ("": none) of a name, by the rules of `_Namespace.create_name`.

    Only asked for names outside of ASCII; the rest is parsed natively.
    """
    candidate = name
    match = fx_graph._name_regex.match(candidate)
    if match is None:
        candidate = fx_graph._illegal_char_regex.sub("_", candidate) or "_unnamed"
        if candidate[0].isdigit():
            candidate = f"_{candidate}"
        match = re.match(fx_graph._name_regex, candidate)
        assert match is not None
    base, number = match.group(1, 2)
    return candidate, base, "" if number is None else str(int(number))


def current_node_meta() -> dict[str, Any] | None:
    """The meta that a node traced now would be born with; None outside of `preserve_node_meta`."""
    if not fx_traceback.has_preserved_node_meta():
        return None
    scratch = torch.fx.Graph()
    proxy = torch.fx.Proxy(scratch.placeholder("x"))
    return dict(proxy[0].node.meta)


# ---- unflattened programs ----


def not_a_frame(function: Callable[..., Any]) -> None:
    """Keep Dynamo from compiling a function on its own; tracing into it from others goes on."""
    frames = torch._C._dynamo.eval_frame
    skip, default = frames._FrameAction.SKIP, frames._FrameAction.DEFAULT
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, default))


# Module `torch.export.unflatten`; the attribute of that name is the function.
_unflatten = importlib.import_module("torch.export.unflatten")
InterpreterModule: Any = _unflatten.InterpreterModule
InterpreterModuleDispatcher: Any = _unflatten.InterpreterModuleDispatcher
UnflattenedModule: Any = _unflatten.UnflattenedModule
FlatArgsAdapter: Any = _unflatten.FlatArgsAdapter
AttrKind: Any = _unflatten._AttrKind
TensorID: Any = _unflatten._TensorID

reorder_kwargs: Callable[[dict[str, Any], Any], dict[str, Any]] = _tree_utils.reorder_kwargs
check_input_constraints: Callable[..., None] = export_utils._check_input_constraints_for_graph


def print_readable(module: Any, title: str, *flags: bool) -> str:
    """`torch.fx.graph_module._print_readable`: the code of a module and those below it."""
    return cast(str, fx_graph_module._print_readable(module, title, *flags))


def without_effect_tokens(program: ExportedProgram) -> ExportedProgram:
    """The program itself when nothing in it has effect tokens, else a copy without them."""
    # By identity: hashing a member of an Enum is a call of Python code.
    token = InputKind.TOKEN
    specs = program.graph_signature.input_specs
    tokens = any(spec.kind is token for spec in specs) or any(
        isinstance(module, torch.fx.GraphModule)
        and module.graph.find_nodes(op="call_function", target=with_effects)
        for module in program.graph_module.modules()
    )
    if not tokens:
        return program
    copied = copy.copy(program)
    copied._graph_module = _copy_graph_module(program.graph_module)
    copied._graph_signature = copy.deepcopy(program.graph_signature)
    return cast(ExportedProgram, _remove_effect_tokens(copied))


def _copy_graph_module(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """A module with graphs of its own, all the way down; attributes and values are shared."""
    result = torch.fx.GraphModule(module, copy.deepcopy(module.graph))
    result.meta = dict(module.meta)
    for name, child in module._modules.items():
        if isinstance(child, torch.fx.GraphModule):
            result._modules[name] = _copy_graph_module(child)
    return result


GraphPickler: Any = _graph_pickler.GraphPickler
# A pickler that takes any operator, and all of a node's meta.
PICKLE_ALL = _graph_pickler.Options(ops_filter=None, node_metadata_key_filter=None)


class GraphCarrier(torch.fx.GraphModule):  # type: ignore[misc]
    """Nothing but a case for a graph: `GraphPickler` knows no bare ones."""

    def recompile(self) -> None:
        """It is asked for, and of no use: the case is opened again when it is read."""


def graph_carrier(graph: torch.fx.Graph) -> GraphCarrier:
    carrier = GraphCarrier.__new__(GraphCarrier)
    torch.nn.Module.__init__(carrier)
    carrier.__dict__[GRAPH_SLOT] = graph
    return carrier


def fake_mode_of_its_own() -> FakeTensorMode:
    return FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)


# ---- tables for the native code ----


def _state_behind(key: str, state: dict[str, Any], *, without: tuple[str, ...]) -> dict[str, Any]:
    keys = list(state)
    return {k: state[k] for k in keys[keys.index(key) + 1 :] if k not in without}


def _pristine_module_init() -> object:
    init = torch.nn.Module.__init__
    return init if init.__module__ == nn_module.__name__ else None


# What takes a tensor out of a subclass of tensors. export puts such nodes in front of all modules.
INNER_TENSOR_TARGETS = frozenset({torch.ops.export.access_subclass_inner_tensor.default})

# What a module whose signature is preserved computes again when export has shared the value with
# another module, because it cannot be passed: `_ModuleFrame.remap_input` has the list.
_RECOMPUTABLE = frozenset(
    {
        torch.ops.aten.sym_size.int,
        torch.ops.aten.item.default,
        torch.ops.aten.unbind.int,
        torch.ops.aten.sum.dim_IntList,
        torch.ops.aten.view.default,
        torch.ops.aten.diff.default,
    }
)


def native_symbols(
    *, deferred_body: dict[str, Any], materialize: Callable[[type], None], errors: dict[str, type]
) -> dict[str, object]:
    """The objects of `csrc/fx/symbols.def`, by role."""
    node, base = torch.fx.Node, fx_node._NodeBase
    fields = {**vars(base), **{k: v for k, v in vars(node).items() if k == "_prepend"}}
    lazy_body = {
        "__module__": CLASS_MODULE,
        "__qualname__": CLASS_QUALNAME,
        "forward": LazyGraphModule._lazy_forward,
    }
    return {
        **{op: op for op in ("call_function", "call_method", "call_module", "get_attr")},
        "output": "output",
        "placeholder": "placeholder",
        "base_globals": base_globals,
        "clone": torch.ops.aten.clone.default,
        "codegen_type": fx_graph.CodeGen,
        "copy_": torch.ops.aten.copy_.default,
        "current_node_meta": current_node_meta,
        "defaultdict": collections.defaultdict,
        "deferred_body": {
            "__module__": CLASS_MODULE,
            "__qualname__": CLASS_QUALNAME,
            "__call__": _CALL_WRAPPED,
            **deferred_body,
        },
        "describe_target": describe_target,
        "detach": torch.ops.aten.detach.default,
        "enter_autocast": torch.amp._enter_autocast,
        "exit_autocast": torch.amp._exit_autocast,
        "set_grad_enabled": torch._C._set_grad_enabled,
        "fake_tensor_type": torch._subclasses.FakeTensor,
        "free_symbols": free_symbols,
        "fx_wrap": torch.fx.wrap,
        "getitem": operator.getitem,
        "graph_module_init_tail": _state_behind(
            GRAPH_SLOT, vars(_PATTERN), without=CODE_ATTRIBUTES
        ),
        "graph_module_type": torch.fx.GraphModule,
        "graph_type": torch.fx.Graph,
        "hop_type": HigherOrderOperator,
        "illegal_names": fx_graph._illegal_names,
        "immutable_dict_type": immutable_dict,
        "immutable_list_type": immutable_list,
        "input_is_buffer": InputKind.BUFFER,
        "input_is_constant": InputKind.CONSTANT_TENSOR,
        "input_is_object": InputKind.CUSTOM_OBJ,
        "input_is_parameter": InputKind.PARAMETER,
        "lazy_graph_module_body": lazy_body,
        "lazy_graph_module_type": LazyGraphModule,
        "materialize": materialize,
        "module_getattr": vars(torch.nn.Module)["__getattr__"],
        "object_getattribute": object.__getattribute__,
        "module_init": _pristine_module_init(),
        "module_init_body": dict(vars(torch.nn.Module())),
        "module_registration_hooks": (
            nn_module._global_module_registration_hooks,
            nn_module._global_parameter_registration_hooks,
            nn_module._global_buffer_registration_hooks,
        ),
        "module_type": torch.nn.Module,
        "node_base_type": base,
        "node_type": node,
        "node_args": fields["_args"],
        "node_erased": fields["_erased"],
        "node_input_nodes": fields["_input_nodes"],
        "node_kwargs": fields["_kwargs"],
        "node_meta": fields["meta"],
        "node_name": fields["name"],
        "node_next": fields["_next"],
        "node_op": fields["op"],
        "node_prepend": fields["_prepend"],
        "node_target": fields["target"],
        "node_type_expr": fields["type"],
        "node_users": fields["users"],
        "op_overload_type": OpOverload,
        "parameter_type": torch.nn.Parameter,
        "parse_name": parse_name,
        "plain_repr_types": frozenset(
            {
                *(int, float, complex, str, bytes, bool, range, type(None), type(...)),
                *(torch.dtype, torch.device, torch.layout, torch.memory_format),
                *(torch.SymInt, torch.SymFloat, torch.SymBool),
            }
        ),
        "recomputable_targets": _RECOMPUTABLE,
        "sym_int_float_types": (torch.SymInt, torch.SymFloat),
        "sympy_symbol_type": sympy.Symbol,
        "target_to_str": functools.partial(torch.fx.Graph._target_to_str, torch.fx.Graph()),
        "tensor_type": torch.Tensor,
        "tree_flatten_spec": fx_pytree.tree_flatten_spec,
        "tree_unflatten": pytree.tree_unflatten,
        **errors,
    }


# The attribute and key names of `csrc/fx/attribute_names.def`, by role.
NATIVE_NAMES = {
    "action": "action",
    "arg": "arg",
    "arg_names": "arg_names",
    "args": "args",
    "autograd_backward": "autograd_backward",
    "base_count": "_base_count",
    "body_transformer": "_body_transformer",
    "call_modules": "_call_modules",
    "codegen": "_codegen",
    "custom": "custom",
    "dunder_getattr": "__getattr__",
    "dunder_getattribute": "__getattribute__",
    "empty_nn_module_stack": EMPTY_NN_MODULE_STACK,
    "example_value": "example_value",
    "expr": "expr",
    "fields": "_fields",
    "from_node": "from_node",
    "func_name": "_func_name",
    "fx_partition": "_fx_partition",
    "grad_fn_seq_nr": "grad_fn_seq_nr",
    "graph": "graph",
    "graph_id": "graph_id",
    "graph_namespace": "_graph_namespace",
    "has_symbolic_sizes_strides": "_has_symbolic_sizes_strides",
    "in_grad_fn": "in_grad_fn",
    "insert": "_insert",
    "is_gradient_acc": "is_gradient_acc",
    "is_impure": "is_impure",
    "is_mutable": "is_mutable",
    "is_wrapped": "is_wrapped",
    "kind": "kind",
    "len": "_len",
    "lookup_table": "_find_nodes_lookup_table",
    "meta": "meta",
    "module_attribute": "__module__",
    "module_dict_buffers": "_buffers",
    "module_dict_modules": "_modules",
    "module_dict_parameters": "_parameters",
    "name": "name",
    "nn_module_stack": "nn_module_stack",
    "node": "node",
    "node_info": "node_info",
    "non_persistent_buffers": "_non_persistent_buffers_set",
    "num_calls": "_num_calls",
    "obj_to_name": "_obj_to_name",
    "own_graph": GRAPH_SLOT,
    "owning_module": "_owning_module",
    "partition_names": "partition_names",
    "pending": PENDING,
    "persistent": "persistent",
    "prepend": "prepend",
    "recompile": "recompile",
    "register_buffer": "register_buffer",
    "register_parameter": "register_parameter",
    "root": "_root",
    "run_with_interpreter": "_run_with_interpreter",
    "schema": "_schema",
    "seq_nr": "seq_nr",
    "source_fn_stack": "source_fn_stack",
    "stack_trace": "stack_trace",
    "table": "table",
    "target": "target",
    "training": "training",
    "ty": "_ty",
    "unbacked_bindings": "unbacked_bindings",
    "used_names": "_used_names",
    "val": "val",
}


foreach_copy = torch._foreach_copy_


def storage_key(storage: torch.UntypedStorage) -> int:
    """What a storage is told by as long as it lives."""
    return int(storage._cdata)


def log_interpreter_error(module: torch.nn.Module, message: str) -> None:
    """Leave the structured log that `Interpreter.run` leaves when a GraphModule's node fails."""
    graph = module.graph if isinstance(module, torch.fx.GraphModule) else None
    if not isinstance(graph, torch.fx.Graph):
        return
    metadata = {"name": "fx_interpreter_error", "encoding": "string"}
    trace_structured(
        "artifact",
        metadata_fn=lambda: metadata,
        payload_fn=lambda: (
            f"{message}\nGraphModule: "
            f"{module.print_readable(print_output=False, include_stride=True)}"
        ),
    )


def guards_log() -> logging.Logger:
    """Where torch says what is wrong with the text of a guard."""
    return logging.getLogger("torch._dynamo.guards")
