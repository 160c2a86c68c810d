"""Look up the objects and names of torch that the engine (`csrc/engine`) uses, by role."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch._ops import OpOverload
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
    module = vars(torch.nn.Module)
    return {
        "annotate": annotate,
        "call_with_meta": call_with_meta,
        "fetch_attr": fetch_attr,
        "int_operators": {getattr(operator, name): i for i, name in enumerate(int_operators)},
        "living_overload": living_overload,
        "map_arg": torch._C._fx_map_arg,
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
