"""What serialization needs of torch's private names; the rest is in `_torch_compat`."""

from __future__ import annotations

from collections import namedtuple
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._export.non_strict_utils import _enable_graph_inputs_of_type_nn_module
from torch._export.serde import schema as schema
from torch._export.serde import serialize as torch_serialize
from torch._export.utils import remove_proxy_from_state_dict as remove_proxy_from_state_dict
from torch._export.verifier import TrainingIRVerifier as TrainingIRVerifier
from torch._export.verifier import Verifier as _Verifier
from torch._library.opaque_object import get_opaque_type_name as get_opaque_type_name
from torch._library.opaque_object import is_opaque_value as is_opaque_value
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch.export import graph_signature as graph_signature
from torch.fx.experimental.symbolic_shapes import is_concrete_bool as is_concrete_bool
from torch.fx.experimental.symbolic_shapes import is_concrete_float as is_concrete_float
from torch.fx.experimental.symbolic_shapes import is_concrete_int as is_concrete_int
from torch.fx.traceback import NodeSource as NodeSource
from torch.utils import _pytree as pytree
from torch.utils._sympy.numbers import int_oo as int_oo

OPS = "torch._ops"  # the module that operators name
INDUCTOR = "torch._inductor.ir"  # only asked for when somebody has imported it
# Errors and tables that callers, registrations and files share with torch.
SerializeError = torch_serialize.SerializeError
SerializedArtifact = torch_serialize.SerializedArtifact
# Pickles of fake tensors name it: it is part of the file format.
reconstruct_fake_tensor = torch_serialize._reconstruct_fake_tensor
SYM_OPS = torch_serialize._SYM_OPS
SCALAR_TYPES = torch_serialize._TORCH_TO_SERIALIZE_DTYPE
LAYOUTS = torch_serialize._TORCH_TO_SERIALIZE_LAYOUT
MEMORY_FORMATS = torch_serialize._TORCH_TO_SERIALIZE_MEMORY_FORMAT
EXTENSIONS = torch_serialize._serialization_registry

# Those whose checks are known; other dialects have their own.
VERIFIERS = (_Verifier, TrainingIRVerifier)

make_union_tag = type(schema.SymInt.create(as_int=0).type).create

Union = schema._Union
SUPPORTED_SERIALIZED_TYPES = pytree.SUPPORTED_SERIALIZED_TYPES
ScriptObject = torch._C.ScriptObject


def allowed_builtins() -> list[Any]:
    """The builtin functions that torch's verifier takes as targets."""
    return list(_Verifier().allowed_builtin_ops())


def opset_version() -> int:
    """The number that files have for the operator set "aten"."""
    return int(torch._C._get_max_operator_version())


def module_inputs(example_inputs: Any) -> AbstractContextManager[None]:
    """While it is open, pytree knows the nn.Module classes among the example inputs."""
    return _enable_graph_inputs_of_type_nn_module(example_inputs)  # type: ignore[no-any-return]


def schema_of(target: Any) -> Any:
    """The schema of an overload."""
    return target._schema


def guards_code(program: Any) -> list[str]:
    """The guards of a program as source text."""
    return program._guards_code  # type: ignore[no-any-return]


def special_operators() -> frozenset[Any]:
    """Higher-order operators whose arguments are not written as they are."""
    hops = torch._higher_order_ops
    return frozenset(
        {
            hops.aoti_call_delegate,
            hops.triton_kernel_wrap.triton_kernel_wrapper_functional,
        }
    )


def dump_treespec(spec: Any) -> str:
    """The text of a tree spec in a file."""
    return str(pytree.treespec_dumps(spec, schema.TREESPEC_VERSION))


def is_namedtuple(kind: Any) -> bool:
    """Whether the type of a tree spec's node is that of named tuples, or is one of them."""
    return bool(kind is namedtuple or pytree.is_namedtuple_class(kind))
