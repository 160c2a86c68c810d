"""Fills in the roles of `csrc/serde/symbols.def`."""

from __future__ import annotations

import json
import sys

import torch

from fxpress import _deferred_code as _deferred_code  # fills in the roles of csrc/fx
from fxpress import _native
from fxpress._serde import kernels, operators, targets
from fxpress._torch import serde as compat

_signature = compat.graph_signature
_INPUT_KINDS = (
    _signature.InputKind.USER_INPUT,
    _signature.InputKind.PARAMETER,
    _signature.InputKind.BUFFER,
    _signature.InputKind.CONSTANT_TENSOR,
    _signature.InputKind.CUSTOM_OBJ,
    _signature.InputKind.TOKEN,
)
_OUTPUT_KINDS = (
    _signature.OutputKind.USER_OUTPUT,
    _signature.OutputKind.LOSS_OUTPUT,
    _signature.OutputKind.BUFFER_MUTATION,
    _signature.OutputKind.PARAMETER_MUTATION,
    _signature.OutputKind.GRADIENT_TO_PARAMETER,
    _signature.OutputKind.GRADIENT_TO_USER_INPUT,
    _signature.OutputKind.USER_INPUT_MUTATION,
    _signature.OutputKind.TOKEN,
)

try:
    from fxpress._aten import extension
except ImportError:  # tensors are read through Python
    _tensor_facts = None
else:
    _tensor_facts = extension.tensor_facts

_native.initialize_serde(
    {
        "constant_argument_type": _signature.ConstantArgument,
        "custom_obj_argument_type": _signature.CustomObjArgument,
        "sym_bool_argument_type": _signature.SymBoolArgument,
        "sym_float_argument_type": _signature.SymFloatArgument,
        "sym_int_argument_type": _signature.SymIntArgument,
        "tensor_argument_type": _signature.TensorArgument,
        "token_argument_type": _signature.TokenArgument,
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
        "graph_signature_type": _signature.ExportGraphSignature,
        "input_spec_type": _signature.InputSpec,
        "output_spec_type": _signature.OutputSpec,
        "make_subclass": compat.make_subclass,
        "make_subclass_keywords": ("dispatch_device", "device_for_backend_keys"),
        "meta_device": torch.device("meta"),
        "module_call_entry_type": compat.ModuleCallEntry,
        "module_call_signature_type": compat.ModuleCallSignature,
        "node_info_type": compat.NodeSource.NodeInfo,
        "node_source_actions": {
            text: action
            for action in compat.NodeSourceAction
            for text in (action.name, action.name.lower())
        },
        "protect_data": compat.protect_data,
        "reading_failed": targets.reading_failed,
        "resolve_target": targets.resolve_target,
        "source_function": targets.source_function,
        "empty_list_tag": operators.empty_list_tag,
        "input_kinds": {kind: i for i, kind in enumerate(_INPUT_KINDS)},
        "layouts": compat.LAYOUTS,
        "memory_formats": compat.MEMORY_FORMATS,
        "module_argument": operators.module_argument,
        "node_failed": operators.node_failed,
        "node_source_type": compat.NodeSource,
        "operator_name": operators.operator_name,
        "other_argument": operators.other_argument,
        "other_list": operators.other_list,
        "output_kinds": {kind: i for i, kind in enumerate(_OUTPUT_KINDS)},
        "scalar_types": compat.SCALAR_TYPES,
        "serialize_error": compat.SerializeError,
        "special_inputs": kernels.special_inputs,
        "fake_device": sys.intern(compat.FAKE_DEVICE),
        "strided": torch.strided,
        "symbolic": operators.symbolic,
        "tensor_facts": _tensor_facts,
        "unsupported_error": operators.UnsupportedProgramError,
    }
)
