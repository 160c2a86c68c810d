"""Import torch's names for graphs, nodes, generated code and pytrees."""

from __future__ import annotations

import builtins
import copy
import functools
import logging
import operator
import re
import types
from collections.abc import Callable, Iterable
from typing import Any, TypeGuard, TypeVar

import torch
import torch.fx
from torch._export.passes import _node_metadata_hook
from torch._library import opaque_object
from torch._library.fake_class_registry import FakeScriptObject as FakeScriptObject
from torch._logging import trace_structured
from torch._ops import HigherOrderOperator as HigherOrderOperator
from torch._ops import OpOverload as OpOverload
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.fx import _lazy_graph_module as lazy_graph_module
from torch.fx import _pytree as _fx_pytree
from torch.fx import graph as fx_graph
from torch.fx import graph_module as fx_graph_module
from torch.fx import node as fx_node
from torch.fx import traceback as fx_traceback
from torch.fx._symbolic_trace import is_fx_symbolic_tracing as is_fx_symbolic_tracing
from torch.fx._utils import lazy_format_graph_code as lazy_format_graph_code
from torch.fx.experimental import _config as fx_config
from torch.fx.graph import PythonCode as PythonCode
from torch.utils import _pytree
from torch.utils._python_dispatch import (
    is_traceable_wrapper_subclass as is_traceable_wrapper_subclass,
)
from torch.utils._pytree import GetAttrKey as GetAttrKey
from torch.utils._pytree import SequenceKey as SequenceKey
from torch.utils._pytree import TreeSpec as TreeSpec

from fxpress._torch.versions import features

CAST = torch.ops.aten._to_copy.default  # converts a tensor to another dtype

_T = TypeVar("_T")

# In newer releases, `is_opaque_value` has a new name, and a use of the old name warns.
is_opaque_value: Callable[[Any], bool] = (
    opaque_object.is_custom_class_obj
    if features.opaque_values_are_custom_classes
    else opaque_object.is_opaque_value
)


def is_fake(value: object) -> TypeGuard[torch.Tensor]:
    """Return whether a value is a fake tensor: a `FakeTensor`, or one that C++ implements."""
    return isinstance(value, FakeTensor) or (
        features.fake_tensors_of_cpp
        and isinstance(value, torch.Tensor)
        and torch._C._is_fake_tensor(value)
    )


def holds_fake(value: object) -> bool:
    """Return whether a value is a fake tensor, or a tensor subclass that contains fake tensors."""
    open_: list[Any] = [value]
    while open_:
        part = open_.pop()
        if is_fake(part):
            return True
        if is_traceable_wrapper_subclass(part):
            open_ += [getattr(part, name) for name in part.__tensor_flatten__()[0]]
    return False


# Within a `with` block of this class, torch ignores `__torch_function__` of tensor subclasses.
DisableTorchFunctionSubclass = torch._C.DisableTorchFunctionSubclass


pytree = _pytree
fx_pytree = _fx_pytree

# The key of nn_module_stack for nodes that were traced outside of any module.
EMPTY_NN_MODULE_STACK: str = _node_metadata_hook._EMPTY_NN_MODULE_STACK_KEY
LazyGraphModule: type[torch.fx.GraphModule] = lazy_graph_module._LazyGraphModule


def uses_lazy_graph_modules() -> bool:
    """Return whether torch's flag for lazy GraphModules (`_use_lazy_graph_module`) is set."""
    return issubclass(lazy_graph_module._get_graph_module_cls(), LazyGraphModule)


# A GraphModule that torch created. fxpress's GraphModules and their classes get its attributes.
PATTERN = torch.fx.GraphModule({}, torch.fx.Graph())
_PATTERN_CLASS = type(PATTERN)

# torch's `__call__` of a GraphModule. Dynamo skips it because of the file that defines it.
CALL_WRAPPED = vars(_PATTERN_CLASS)["__call__"]
CLASS_QUALNAME: str = _PATTERN_CLASS.__qualname__
CLASS_MODULE: str = _PATTERN_CLASS.__module__
CODE_ATTRIBUTES = ("_code", "_lineno_map", "_prologue_start")

# The entries, in order, that `recompile` adds to the `__dict__` of a GraphModule.
RECOMPILED_STATE = ("_in_spec", "_out_spec", *CODE_ATTRIBUTES)
PENDING = "_fxpress_pending"  # in a class with deferred code: a weak reference to the module
GRAPH_SLOT = "_graph"


def wrapped_call(cls: type) -> object:
    """Return the `_wrapped_call` that `recompile` stores on a class without its own `__call__`."""
    return fx_graph_module._WrappedCall(cls, None)


def forward_from_source(source: str, namespace: dict[str, Any], graph: torch.fx.Graph) -> Any:
    """Compile generated source, register it with `linecache` as torch does; return the function."""
    return fx_graph_module._forward_from_src(source, namespace, getattr(graph, "_co_fields", {}))


def forward_from_code(
    pattern: types.CodeType,
    names: tuple[str, ...],
    source: str,
    namespace: dict[str, Any],
    graph: torch.fx.Graph,
) -> Any:
    """Return the function of `source`, from equal code (`pattern`) with other names of locals."""
    namespace = {**namespace, "__builtins__": vars(builtins)}
    key = fx_graph_module._loader.cache(source, namespace, getattr(graph, "_co_fields", {}))
    code = pattern.replace(co_filename=key, co_varnames=names)
    return types.FunctionType(code, namespace, "forward")


def _with_own_nodes(graph: torch.fx.Graph) -> torch.fx.Graph:
    """Return a copy of a graph, for torch's code generator, which may rename the copy's nodes."""
    twin = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in graph.nodes:
        # `create_node` does not check get_attr nodes. Only the code generator shall check the node.
        copied = copies[node] = twin.create_node("get_attr", "", type_expr=node.type)
        copied.name, copied.op, copied.target = node.name, node.op, node.target
        arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: copies.get(n, n))
        copied.args, copied.kwargs = arguments
        copied.meta = node.meta
    twin._codegen = graph._codegen
    twin._co_fields = graph._co_fields
    return twin


class _Separate(torch.fx.GraphModule):  # type: ignore[misc]
    """A GraphModule subclass, so that `deferred_code.deferring` does not defer its code."""


def recompile_separately(graph: torch.fx.Graph) -> tuple[PythonCode, Any, dict[str, Any]]:
    """Run torch's `recompile` on a new module; return code, `forward` and `__dict__` entries."""
    module = torch.fx.GraphModule.__new__(_Separate)
    torch.nn.Module.__init__(module)
    # A subclass of Graph may generate code by its own rules, so only a plain Graph is copied.
    module._graph = _with_own_nodes(graph) if type(graph) is torch.fx.Graph else graph
    code = module.recompile()
    state = {name: vars(module)[name] for name in RECOMPILED_STATE if name in vars(module)}
    return code, vars(type(module))["forward"], state


def enriches_profiler_metadata() -> bool:
    """Return whether generated code needs profiler marks, which only torch's generator writes."""
    return bool(fx_config.enrich_profiler_metadata)


def shows_meta_in_source() -> bool:
    """Return whether FX_GRAPH_SHOW_META makes torch's generator write metadata into the source."""
    import os

    return os.environ.get("FX_GRAPH_SHOW_META", "0") == "1"


def sample_graph() -> torch.fx.Graph:
    """Return a graph with all types of statements and arguments that native code can generate."""
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.placeholder("y", default_value=1)
    total = graph.call_function(torch.add, (x, 1), {"alpha": 2.5})
    total = graph.call_method("mul", (total, y), {"other": [x, (y,)]})
    total = graph.call_module("layers.0", (total,))
    total = graph.call_function(operator.add, (total, graph.get_attr("layers.0.weight")))
    total = graph.call_function(operator.iadd, (total, -1))
    shape = graph.call_function(getattr, (total, "shape"))
    graph.call_function(torch.ops.aten.sin.default, (x,))  # nothing uses it
    constants = (None, True, "text", 2 + 3j, 1j, slice(1, None), torch.float32, torch.device("cpu"))
    graph.output((total, [shape, constants], {"key": x}))
    return graph


def sample_graph_with_trees() -> torch.fx.Graph:
    """Return a graph whose code flattens inputs and builds outputs by tree specs."""
    graph = torch.fx.Graph()
    x, y, input_ = (graph.placeholder(name) for name in ("x", "y_0", "input"))
    graph.output((x, y, graph.call_function(torch.add, (input_, x))))
    spec = _pytree.tree_structure(((0, [1]), {"input": 2}))
    graph.set_codegen(pytree_codegen(["x", "y", "input"], spec, _pytree.tree_structure([0, 1, 2])))
    return graph


def tree_inputs(codegen: Any) -> tuple[list[str], list[str], list[str] | None, bool] | None:
    """Return (all parameter names, positional names, keyword names, whether there is an out_spec).

    The keyword names are None if all arguments are positional. The result is None if only torch's
    code generator supports the graph.
    """
    info = codegen.pytree_info
    if info is None or "self" in info.orig_args:
        return None
    names, spec = list(info.orig_args), info.in_spec
    children = spec.children() if spec.type is tuple else []
    if [child.type for child in children] != [tuple, dict]:
        return names, names, None, bool(info.out_spec)
    args, kwargs = children
    return names, names[: args.num_children], list(map(str, kwargs.context)), bool(info.out_spec)


def tree_specs(graph: torch.fx.Graph) -> dict[str, Any]:
    """Return the entries for tree specs that `recompile` adds to a module's `__dict__`."""
    codegen: Any = graph._codegen
    if not isinstance(codegen, fx_graph._PyTreeCodeGen):
        return {}
    info = codegen.pytree_info
    return {"_in_spec": info.in_spec, "_out_spec": info.out_spec}


def describe_target(target: Callable[..., Any]) -> tuple[str, str]:
    """Return a function's `TargetKind` (csrc/fx/source_parts.h), and its text in generated code."""
    if not callable(target):
        raise AssertionError(f"Expected node.target to be callable, got {type(target)}")
    if getattr(target, "__module__", "") == "_operator":
        name = target.__name__
        if name in fx_graph.magic_methods:
            return "operator", fx_graph.magic_methods[name]
        if name in fx_graph.inplace_methods:
            return "inplace", fx_graph.inplace_methods[name]
    qualified = fx_node._get_qualified_name(target)
    if fx_graph._is_from_torch(target) and target != torch.device:
        return "qualified", qualified
    return "global", qualified


@functools.lru_cache(maxsize=4)
def _base_globals(_registered: int) -> dict[str, Any]:
    return dict(torch.fx.Graph().python_code("self").globals)


def base_globals() -> dict[str, Any]:
    """Return the globals that the code of every graph has."""
    return _base_globals(len(fx_graph._custom_builtins))


def parse_name(name: str) -> tuple[str, str, str]:
    """Split a name as `_Namespace.create_name` does: the valid name, its base, its number or ""."""
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
    """Return the meta that a node would get if it were traced now; None if it would get none."""
    if not fx_traceback.has_preserved_node_meta():
        return None
    scratch = torch.fx.Graph()
    proxy = torch.fx.Proxy(scratch.placeholder("x"))
    return dict(proxy[0].node.meta)


NodeSourceAction = fx_traceback.NodeSourceAction


def provenance_rules(pass_name: str, *actions: Any) -> dict[str, object]:
    """Return the `ProvenanceRules` (csrc/fx/provenance.h) for the `from_node` of a pass's nodes."""
    sample = torch.fx.Graph().placeholder("sample")
    source = fx_traceback.NodeSource(sample, pass_name, list(actions))
    return {
        "source": fx_traceback.NodeSource,
        "source_info": fx_traceback.NodeSource.NodeInfo,
        "attributes": dict(vars(source)),
        "keep": list if features.provenance_is_shared else _copy_sources,
    }


def _copy_sources(sources: Iterable[Any]) -> list[Any]:
    """Return deep copies of NodeSources: `copy.deepcopy` is slow for thousands of nodes."""
    return [*map(_copy_source, sources)]


def _copy_source(source: Any) -> Any:
    if type(source) is not fx_traceback.NodeSource:
        return copy.deepcopy(source)
    made = object.__new__(fx_traceback.NodeSource)
    fields = made.__dict__
    fields.update(source.__dict__)  # torch never edits the values that are shared here
    fields["action"] = [*source.action]
    if source.node_info is not None:
        info = fields["node_info"] = object.__new__(type(source.node_info))
        info.__dict__.update(source.node_info.__dict__)
    fields["from_node"] = _copy_sources(source.from_node)
    return made


def pytree_codegen(names: list[str], in_spec: Any, out_spec: Any) -> Any:
    """Return a code generator that flattens inputs and builds outputs by tree specs."""
    return fx_graph._PyTreeCodeGen(fx_graph._PyTreeInfo(names, in_spec, out_spec))


foreach_copy = torch._foreach_copy_


def log_interpreter_error(module: torch.nn.Module, message: str) -> None:
    """Write the structured log that `Interpreter.run` writes when a GraphModule's node fails."""
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


# The logger to which torch reports faults in the text of a guard.
GUARDS_LOG = logging.getLogger("torch._dynamo.guards")
