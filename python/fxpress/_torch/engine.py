"""Look up the objects and names of torch that the engine (`csrc/engine`) uses, by role."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import node as fx_node
from torch.fx import traceback as fx_traceback
from torch.nn.modules import module as nn_module

from fxpress._torch.versions import features


def living_overload(overload: OpOverload) -> OpOverload:
    """Return the overload that is registered now under the name of another overload."""
    space, _, name = overload._name.partition("::")
    try:
        packet = getattr(getattr(torch.ops, space), name.partition(".")[0])
        found: OpOverload = getattr(packet, overload._overloadname)
    except AttributeError:
        raise RuntimeError(
            f"the operator {overload._name} is gone: the torch.library.Library that defined it was "
            "destroyed"
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
    """Return the objects of `csrc/engine/symbols.def`, by role."""
    fields = vars(fx_node._NodeBase)
    module = vars(torch.nn.Module)
    return {
        **{op: op for op in ("call_function", "call_method", "call_module", "get_attr")},
        "annotate": annotate,
        "call_with_meta": call_with_meta,
        "fetch_attr": fetch_attr,
        "getitem": operator.getitem,
        "int_operators": {getattr(operator, name): i for i, name in enumerate(int_operators)},
        "living_overload": living_overload,
        "map_arg": torch._C._fx_map_arg,
        "missing_argument": missing_argument,
        "module_call": module["__call__"],
        "module_call_impl": module["_call_impl"],
        "module_getattr": module["__getattr__"],
        "module_wrapped_call": module["_wrapped_call_impl"],
        "nn_module_globals": vars(nn_module),
        "node_args": fields["_args"],
        "node_erased": fields["_erased"],
        "node_input_nodes": fields["_input_nodes"],
        "node_kwargs": fields["_kwargs"],
        "node_next": fields["_next"],
        "node_op": fields["op"],
        "node_target": fields["target"],
        "node_type": torch.fx.Node,
        "object_getattribute": object.__getattribute__,
        "op_overload_call": vars(OpOverload)["__call__"],
        "op_overload_type": OpOverload,
        "output": "output",
        "placeholder": "placeholder",
        "plain_errors": features.operators_raise_plain_errors,
        "python_kernels": torch.library._impls,
        "traceback_globals": vars(fx_traceback),
    }


# The attribute and key names of `csrc/engine/names.def`, by role.
ENGINE_NAMES = {
    "arg_names": "arg_names",
    "backward_hooks": "_backward_hooks",
    "backward_pre_hooks": "_backward_pre_hooks",
    "buffers": "_buffers",
    "call": "__call__",
    "call_impl": "_call_impl",
    "call_modules": "_call_modules",
    "compiled_call": "_compiled_call_impl",
    "forward": "forward",
    "forward_hooks": "_forward_hooks",
    "forward_pre_hooks": "_forward_pre_hooks",
    "getattr": "__getattr__",
    "getattribute": "__getattribute__",
    "global_backward_hooks": "_global_backward_hooks",
    "global_backward_pre_hooks": "_global_backward_pre_hooks",
    "global_forward_hooks": "_global_forward_hooks",
    "global_forward_pre_hooks": "_global_forward_pre_hooks",
    "graph": "graph",
    "graph_module": "graph_module",
    "modules": "_modules",
    "num_calls": "_num_calls",
    "op_name": "_name",
    "parameters": "_parameters",
    "plan": "_fxpress_plan",
    "positional": "_positional",
    "preserve_meta": "should_preserve_node_meta",
    "root": "_root",
    "run_with_interpreter": "_run_with_interpreter",
    "wrapped_call": "_wrapped_call_impl",
}
