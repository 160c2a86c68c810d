"""Pass the Python objects that `csrc/serde/symbols.def` lists to native code."""

from __future__ import annotations

import json
import sys

import torch

from fxpress import _native
from fxpress._files.serde import kernels, operators, targets
from fxpress._torch import serde as compat
from fxpress._torch.native_tables import fill_once, fx, tensor_part_symbol
from fxpress._torch.versions import features


@fill_once
def fill() -> None:
    """Fill the native table of Python objects."""
    fx()
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
            "source_function": targets.source_function,
            "empty_list_tag": operators.empty_list_tag,
            "layouts": compat.LAYOUTS,
            "memory_formats": compat.MEMORY_FORMATS,
            "module_argument": operators.module_argument,
            "node_failed": operators.node_failed,
            "node_source_type": compat.NodeSource,
            "operator_name": operators.operator_name,
            "other_argument": operators.other_argument,
            "other_list": operators.other_list,
            "scalar_types": compat.SCALAR_TYPES,
            "serialize_error": compat.SerializeError,
            "spec_kinds": {
                (signature.InputKind if is_input else signature.OutputKind)[name]: row
                for row, (is_input, name) in enumerate(_native.SPEC_KINDS)
                if name
            },
            "special_inputs": kernels.special_inputs,
            "fake_device": sys.intern(compat.FAKE_DEVICE),
            "strided": torch.strided,
            "symbolic": operators.symbolic,
            "tensor_facts": tensor_part_symbol("tensor_facts"),  # None: C++ reads Python attributes
            "unsupported_error": operators.UnsupportedProgramError,
        }
    )
