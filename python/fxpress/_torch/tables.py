"""Look up the objects and names of torch that `csrc/fx` and `csrc/engine` use, by role."""

from __future__ import annotations

import collections
import functools
import operator
import re
from collections.abc import Callable
from typing import Any

import sympy
import torch
import torch.fx
from torch._functorch import predispatch
from torch._ops import HigherOrderOperator, OpOverload
from torch.export.graph_signature import InputKind
from torch.fx import graph as fx_graph
from torch.fx import node as fx_node
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.symbolic_shapes import free_symbols
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.nn.modules import module as nn_module

from fxpress._torch import fx as torch_fx
from fxpress._torch.fakes import make_subclass, protect_data, protects_data
from fxpress._torch.versions import features

# Each Graph has its own instances of these classes.
_PARTS_OF_GRAPH = (fx_graph._Namespace, fx_graph.CodeGen, fx_graph._FindNodesLookupTable)


def _is_known_graph(attributes: dict[str, Any]) -> bool:
    """Return whether native code can create the attributes of an empty Graph as torch does."""
    init = torch.fx.Graph.__init__
    known = dict(attributes)
    root, insert = known.pop("_root", None), known.pop("_insert", None)
    return (
        init.__module__ == fx_graph.__name__
        and type(root) is torch.fx.Node
        and insert == root.prepend
        and all(map(_is_known_part, known.values()))
    )


def _is_known_part(value: Any) -> bool:
    if isinstance(value, (dict, set)):
        return type(value) in (dict, set, collections.defaultdict) and not value
    if type(value) in _PARTS_OF_GRAPH:
        return all(map(_is_known_part, vars(value).values()))
    return value is None or type(value) in (int, str)


# Export computes some results once for several modules. A module with a preserved signature has no
# input for such a result. If the result's operator is in this set, the module computes it again.
# torch's `_ModuleFrame.remap_input` has the same list.
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


def _of_class_statements() -> dict[str, object]:
    """Return the attributes that Python 3.13's class statement sets and `type()` does not."""
    made = vars(type(torch_fx.PATTERN))
    return {
        name: made[name] for name in ("__firstlineno__", "__static_attributes__") if name in made
    }


def native_symbols(
    *,
    deferred_body: dict[str, Any],
    materialize: Callable[[type], None],
    errors: dict[str, type],
    fake_like: Callable[[], object],
) -> dict[str, object]:
    """Return the Python objects that `csrc/fx/symbols.def` lists, by role."""
    node, base = torch.fx.Node, fx_node._NodeBase
    names = list(vars(torch_fx.PATTERN))
    tail = names[names.index(torch_fx.GRAPH_SLOT) + 1 :]
    module_init = torch.nn.Module.__init__
    fields = {**vars(base), **{k: v for k, v in vars(node).items() if k == "_prepend"}}
    graph_body = dict(vars(torch.fx.Graph()))
    graph_is_known = _is_known_graph(graph_body)
    lazy_body = {
        "__module__": torch_fx.CLASS_MODULE,
        "__qualname__": torch_fx.CLASS_QUALNAME,
        "forward": torch_fx.LazyGraphModule._lazy_forward,
        **_of_class_statements(),
    }
    return {
        **{op: op for op in ("call_function", "call_method", "call_module", "get_attr")},
        "output": "output",
        "placeholder": "placeholder",
        "base_globals": torch_fx.base_globals,
        "boxed_arguments": features.boxed_arguments,
        "clone": torch.ops.aten.clone.default,
        "codegen_type": fx_graph.CodeGen,
        "complex_calls": features.complex_constants_are_calls,
        "copy_": torch.ops.aten.copy_.default,
        "current_node_meta": torch_fx.current_node_meta,
        "defaultdict": collections.defaultdict,
        "deferred_body": {
            "__module__": torch_fx.CLASS_MODULE,
            "__qualname__": torch_fx.CLASS_QUALNAME,
            "__call__": torch_fx.CALL_WRAPPED,
            **_of_class_statements(),
            **deferred_body,
        },
        "describe_target": torch_fx.describe_target,
        "detach": torch.ops.aten.detach.default,
        "empty_nn_module_stack": torch_fx.EMPTY_NN_MODULE_STACK,
        "enter_autocast": torch.amp._enter_autocast,
        "exit_autocast": torch.amp._exit_autocast,
        "set_grad_enabled": torch._C._set_grad_enabled,
        "fake_like": fake_like,
        "fake_tensor_type": torch._subclasses.FakeTensor,
        "free_symbols": free_symbols,
        "fx_wrap": torch.fx.wrap,
        "getitem": operator.getitem,
        "graph_init": vars(torch.fx.Graph)["__init__"] if graph_is_known else None,
        "graph_init_body": graph_body,
        "graph_module_init_tail": {
            n: vars(torch_fx.PATTERN)[n] for n in tail if n not in torch_fx.CODE_ATTRIBUTES
        },
        "graph_module_type": torch.fx.GraphModule,
        "graph_part_types": _PARTS_OF_GRAPH,
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
        "lazy_graph_module_type": torch_fx.LazyGraphModule,
        "make_subclass": make_subclass,
        "make_subclass_keywords": ("dispatch_device", "device_for_backend_keys"),
        "materialize": materialize,
        "module_getattr": vars(torch.nn.Module)["__getattr__"],
        "object_getattribute": object.__getattribute__,
        # None: other code has replaced the method.
        "module_init": module_init if module_init.__module__ == nn_module.__name__ else None,
        "module_init_body": dict(vars(torch.nn.Module())),
        "module_registration_hooks": (
            nn_module._global_module_registration_hooks,
            nn_module._global_parameter_registration_hooks,
            nn_module._global_buffer_registration_hooks,
        ),
        "module_type": torch.nn.Module,
        "nesting_functions": frozenset(
            function
            for name, function in vars(predispatch).items()
            if re.search("_nesting$|_dual_level$|^lazy_load", name)
        ),
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
        "own_graph": torch_fx.GRAPH_SLOT,
        "parameter_type": torch.nn.Parameter,
        "parse_name": torch_fx.parse_name,
        "pending": torch_fx.PENDING,
        "plain_repr_types": frozenset(
            {
                *(int, float, complex, str, bytes, bool, range, type(None), type(...)),
                *(torch.dtype, torch.device, torch.layout, torch.memory_format),
                *(torch.SymInt, torch.SymFloat, torch.SymBool),
            }
        ),
        "protect_data": protect_data,
        "protects_data": protects_data,
        "recomputable_targets": _RECOMPUTABLE,
        "sym_int_float_types": (torch.SymInt, torch.SymFloat),
        "sympy_symbol_type": sympy.Symbol,
        "target_to_str": functools.partial(torch.fx.Graph._target_to_str, torch.fx.Graph()),
        "tensor_type": torch.Tensor,
        "tree_codegen_type": fx_graph._PyTreeCodeGen,
        "tree_inputs": torch_fx.tree_inputs,
        "tree_flatten_spec": torch_fx.fx_pytree.tree_flatten_spec,
        "tree_unflatten": torch_fx.pytree.tree_unflatten,
        **errors,
    }


def living_overload(overload: OpOverload) -> OpOverload:
    """Return the overload that is now registered under the name of `overload`."""
    space, _, name = overload._name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, space), name.partition(".")[0])
        found: OpOverload = getattr(packet, overload._overloadname)
    except AttributeError:
        raise RuntimeError(
            f"the operator {overload._name} was removed: the torch.library.Library that "
            "defined it was destroyed"
        ) from None
    return found


def engine_symbols(
    *,
    annotate: Callable[..., BaseException],
    call_with_meta: Callable[..., Any],
    fetch_attr: Callable[..., Any],
    int_operators: tuple[str, ...],
    missing_argument: Callable[..., Any],
) -> dict[str, object]:
    """Return the Python objects that `csrc/engine/symbols.def` lists, by role."""
    module = vars(torch.nn.Module)
    return {
        "annotate": annotate,
        "call_with_meta": call_with_meta,
        "fetch_attr": fetch_attr,
        "int_operators": {getattr(operator, name): i for i, name in enumerate(int_operators)},
        "living_overload": living_overload,
        "missing_argument": missing_argument,
        "module_call": module["__call__"],
        "module_call_impl": module["_call_impl"],
        "module_wrapped_call": module["_wrapped_call_impl"],
        "nn_module_globals": vars(nn_module),
        "op_overload_call": vars(OpOverload)["__call__"],
        "plain_errors": features.operators_raise_plain_errors,
        "python_kernels": torch.library._impls,
        "traceback_globals": vars(fx_traceback),
    }
