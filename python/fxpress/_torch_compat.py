"""The one place that knows torch's private names.

Everything that fxpress uses of torch beyond its documented interface is looked up here, under a
name that says what it is for; support for other torch versions differs here and nowhere else.
"""

from __future__ import annotations

import builtins
import collections
import functools
import operator
import re
import types
from collections.abc import Callable
from enum import IntEnum
from typing import Any, TypeVar, cast

import sympy
import torch
import torch.fx
from torch.fx import _lazy_graph_module as lazy_graph_module
from torch.fx import graph as fx_graph
from torch.fx import graph_module as fx_graph_module
from torch.fx import node as fx_node
from torch.fx import traceback as fx_traceback
from torch.fx._compatibility import compatibility as fx_compatibility
from torch.fx._utils import lazy_format_graph_code as lazy_format_graph_code
from torch.fx.experimental import _config as fx_config
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.graph import PythonCode as PythonCode
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.nn.modules import module as nn_module

_T = TypeVar("_T")

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


# ---- tables for the native code ----


def _state_behind(key: str, state: dict[str, Any], *, without: tuple[str, ...]) -> dict[str, Any]:
    keys = list(state)
    return {k: state[k] for k in keys[keys.index(key) + 1 :] if k not in without}


def _pristine_module_init() -> object:
    init = torch.nn.Module.__init__
    return init if init.__module__ == nn_module.__name__ else None


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
        "codegen_type": fx_graph.CodeGen,
        "current_node_meta": current_node_meta,
        "defaultdict": collections.defaultdict,
        "deferred_body": {
            "__module__": CLASS_MODULE,
            "__qualname__": CLASS_QUALNAME,
            "__call__": _CALL_WRAPPED,
            **deferred_body,
        },
        "describe_target": describe_target,
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
        "hop_type": torch._ops.HigherOrderOperator,
        "illegal_names": fx_graph._illegal_names,
        "immutable_dict_type": immutable_dict,
        "immutable_list_type": immutable_list,
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
        "op_overload_type": torch._ops.OpOverload,
        "parameter_type": torch.nn.Parameter,
        "parse_name": parse_name,
        "plain_repr_types": frozenset(
            {
                *(int, float, complex, str, bytes, bool, range, type(None), type(...)),
                *(torch.dtype, torch.device, torch.layout, torch.memory_format),
                *(torch.SymInt, torch.SymFloat, torch.SymBool),
            }
        ),
        "sym_int_float_types": (torch.SymInt, torch.SymFloat),
        "sympy_symbol_type": sympy.Symbol,
        "target_to_str": functools.partial(torch.fx.Graph._target_to_str, torch.fx.Graph()),
        "tensor_type": torch.Tensor,
        **errors,
    }


# The attribute and key names of `csrc/fx/attribute_names.def`, by role.
NATIVE_NAMES = {
    "base_count": "_base_count",
    "body_transformer": "_body_transformer",
    "codegen": "_codegen",
    "dunder_getattr": "__getattr__",
    "dunder_getattribute": "__getattribute__",
    "example_value": "example_value",
    "expr": "expr",
    "fields": "_fields",
    "func_name": "_func_name",
    "fx_partition": "_fx_partition",
    "graph": "graph",
    "has_symbolic_sizes_strides": "_has_symbolic_sizes_strides",
    "is_wrapped": "is_wrapped",
    "len": "_len",
    "lookup_table": "_find_nodes_lookup_table",
    "meta": "meta",
    "module_dict_buffers": "_buffers",
    "module_dict_modules": "_modules",
    "module_dict_parameters": "_parameters",
    "graph_namespace": "_graph_namespace",
    "node": "node",
    "obj_to_name": "_obj_to_name",
    "own_graph": GRAPH_SLOT,
    "owning_module": "_owning_module",
    "partition_names": "partition_names",
    "pending": PENDING,
    "recompile": "recompile",
    "register_buffer": "register_buffer",
    "root": "_root",
    "table": "table",
    "training": "training",
    "used_names": "_used_names",
}
