"""Fill the tables of the native modules: the objects and names that their `symbols.def` list.

A module that calls native code of a room calls the room's function here, once, at its top. The
first call fills the table.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
from collections.abc import Callable

from fxpress import _native

_lock = threading.RLock()


def _forget_lock() -> None:
    """A forked child starts with a lock that no thread of its own holds."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_forget_lock)


def _once(fill: Callable[[], None]) -> Callable[[], None]:
    """Make a function that fills its table once, also when several threads call it."""
    filled = False

    @functools.wraps(fill)
    def fill_once() -> None:
        nonlocal filled
        with _lock:
            if not filled:
                fill()
                filled = True

    return fill_once


@functools.cache
def _of_tensor_part(name: str) -> object:
    """Return what the part that needs libtorch has; None: there is no part for this torch."""
    try:
        from fxpress._aten import extension
    except ImportError:
        return None
    found: object = getattr(extension, name)
    return found


@_once
def fx() -> None:
    """Fill the table of `csrc/fx/symbols.def`, which all native code for graphs needs."""
    from fxpress import _deferred_code
    from fxpress._errors import InternalError
    from fxpress._torch import tables

    _native.initialize(
        tables.native_symbols(
            deferred_body=_deferred_code.BODY,
            materialize=_deferred_code.materialize,
            errors={"internal_error": InternalError},
            fake_like=functools.partial(_of_tensor_part, "fake_like"),  # loaded when it is needed
        ),
        tables.NATIVE_NAMES,
    )


@_once
def engine() -> None:
    """Fill the table of `csrc/engine/symbols.def`. The engine is part of `_aten`."""
    from fxpress._aten import extension
    from fxpress._engine import callbacks
    from fxpress._torch.engine import ENGINE_NAMES, engine_symbols

    symbols = engine_symbols(
        annotate=callbacks.annotate,
        call_with_meta=callbacks.call_with_meta,
        fetch_attr=callbacks.fetch_attr,
        int_operators=extension.INT_OPERATORS,
        missing_argument=callbacks.missing_argument,
    )
    extension.initialize_engine(symbols, ENGINE_NAMES)


@_once
def serde() -> None:
    """Fill the table of `csrc/serde/symbols.def`."""
    fx()
    import torch

    from fxpress._serde import kernels, operators, targets
    from fxpress._torch import serde as compat
    from fxpress._torch.versions import features

    signature = compat.graph_signature
    _native.initialize_serde(
        {
            "constant_argument_type": signature.ConstantArgument,
            "custom_obj_argument_type": signature.CustomObjArgument,
            "sym_bool_argument_type": signature.SymBoolArgument,
            "sym_float_argument_type": signature.SymFloatArgument,
            "sym_int_argument_type": signature.SymIntArgument,
            "tensor_argument_type": signature.TensorArgument,
            "token_argument_type": signature.TokenArgument,
            "describe_operator": operators.describe_operator,
            "device_type": torch.device,
            "dtype_type": torch.dtype,
            "layout_type": torch.layout,
            "memory_format_type": torch.memory_format,
            "sym_bool_type": torch.SymBool,
            "sym_float_type": torch.SymFloat,
            "sym_int_type": torch.SymInt,
            "dumps": operators.dumps,
            "loads": json.loads,
            "empty_strided": torch.empty_strided,
            "empty_strided_keywords": ("dtype", "device"),
            "graph_signature_type": signature.ExportGraphSignature,
            "input_spec_type": signature.InputSpec,
            "output_spec_type": signature.OutputSpec,
            "lists_of_int_lists": features.lists_of_lists_of_ints,
            "meta_device": torch.device("meta"),
            "module_call_entry_type": compat.ModuleCallEntry,
            "module_call_signature_type": compat.ModuleCallSignature,
            "node_info_type": compat.NodeSource.NodeInfo,
            "node_source_actions": {
                text: action
                for action in compat.NodeSourceAction
                for text in (action.name, action.name.lower())
            },
            "reading_failed": targets.reading_failed,
            "resolve_target": targets.resolve_target,
            "source_function": targets.source_function,
            "empty_list_tag": operators.empty_list_tag,
            "input_kinds": {
                signature.InputKind[name]: i for i, name in enumerate(_native.INPUT_KINDS)
            },
            "layouts": compat.LAYOUTS,
            "memory_formats": compat.MEMORY_FORMATS,
            "module_argument": operators.module_argument,
            "node_failed": operators.node_failed,
            "node_source_type": compat.NodeSource,
            "operator_name": operators.operator_name,
            "other_argument": operators.other_argument,
            "other_list": operators.other_list,
            "output_kinds": {
                signature.OutputKind[name]: i for i, name in enumerate(_native.OUTPUT_KINDS)
            },
            "scalar_types": compat.SCALAR_TYPES,
            "serialize_error": compat.SerializeError,
            "special_inputs": kernels.special_inputs,
            "fake_device": sys.intern(compat.FAKE_DEVICE),
            "strided": torch.strided,
            "symbolic": operators.symbolic,
            "tensor_facts": _of_tensor_part("tensor_facts"),  # None: through Python
            "unsupported_error": operators.UnsupportedProgramError,
        }
    )
