"""Import torch's names for serialization: schema, serializer, symbols and verifiers."""

from __future__ import annotations

import functools
import math
import operator
import threading
import types
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import torch
from torch._dynamo.exc import UserError as UserError
from torch._dynamo.exc import UserErrorType
from torch._export import utils as export_utils
from torch._export.serde import schema as schema
from torch._export.serde import serialize as torch_serialize
from torch._export.serde.dynamic_shapes import DynamicShapesSpec as DynamicShapesSpec
from torch._export.serde.dynamic_shapes import RootDim as RootDim
from torch._export.serde.serialize import SerializedArtifact as SerializedArtifact
from torch._export.utils import remove_proxy_from_state_dict as remove_proxy_from_state_dict
from torch._export.verifier import SpecViolationError as SpecViolationError
from torch._export.verifier import TrainingIRVerifier as TrainingIRVerifier
from torch._export.verifier import Verifier as _Verifier
from torch._export.verifier import load_verifier as load_verifier
from torch._higher_order_ops import aoti_call_delegate, effects
from torch._higher_order_ops.torchbind import CallTorchBind as CallTorchBind
from torch._higher_order_ops.triton_kernel_wrap import kernel_side_table as kernel_side_table
from torch._higher_order_ops.triton_kernel_wrap import (
    triton_kernel_wrapper_functional as triton_kernel_wrapper_functional,
)
from torch._library.opaque_object import get_opaque_type_name as get_opaque_type_name
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, dynamic_shapes, exported_program
from torch.export import graph_signature as graph_signature
from torch.fx import _pytree as fx_pytree
from torch.fx import node as fx_node
from torch.fx.experimental import symbolic_shapes
from torch.fx.experimental.symbolic_shapes import is_concrete_bool as is_concrete_bool
from torch.fx.experimental.symbolic_shapes import is_concrete_float as is_concrete_float
from torch.fx.experimental.symbolic_shapes import is_concrete_int as is_concrete_int
from torch.fx.traceback import NodeSource as NodeSource
from torch.fx.traceback import NodeSourceAction as NodeSourceAction
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._sympy import functions as sympy_functions
from torch.utils._sympy.numbers import int_oo as int_oo
from torch.utils._sympy.symbol import SymT
from torch.utils._sympy.symbol import prefix_str as prefix_str
from torch.utils._sympy.value_ranges import ValueRanges as ValueRanges
from torch.utils._traceback import CapturedTraceback as CapturedTraceback
from torch.utils._triton import has_triton

from fxpress._base.errors import Error
from fxpress._base.replacement import replace_lock_in_children
from fxpress._torch.versions import features

OPS = "torch._ops"  # the `__module__` of operators
INDUCTOR = "torch._inductor.ir"  # found in sys.modules if imported: an import would be slow
# Whether torch serializes Triton kernels on this machine; some releases accept a CPU backend too.
can_use_triton: Callable[[], bool] = (
    functools.partial(has_triton, include_cpu=True) if features.triton_on_cpu else has_triton
)
# fxpress uses torch's own objects here: callers, registered extensions and pickles refer to them.
SerializedProgram = torch_serialize._SerializedProgram
ExtensionHandler = torch_serialize.ExtensionHandler
Final = torch_serialize.Final  # the metaclass of classes that cannot be subclassed
MetaType = torch_serialize.MetaType
DEFAULT_PICKLE_PROTOCOL = torch_serialize.DEFAULT_PICKLE_PROTOCOL
ST_DELIMITER = torch_serialize.ST_DELIMITER
DTYPES = torch_serialize._SERIALIZE_TO_TORCH_DTYPE
LAYOUTS_BY_NUMBER = torch_serialize._SERIALIZE_TO_TORCH_LAYOUT
MEMORY_FORMATS_BY_NUMBER = torch_serialize._SERIALIZE_TO_TORCH_MEMORY_FORMAT
SYMBOLIC_NUMBERS = (torch.SymInt, torch.SymFloat, torch.SymBool)
# The attribute in which a fake tensor keeps its device.
FAKE_DEVICE = "_fake_device" if features.fake_device_is_a_property else "fake_device"
# Pickles of fake tensors contain the name of this function, so it is part of the file format.
reconstruct_fake_tensor = torch_serialize._reconstruct_fake_tensor
SYM_OPS = torch_serialize._SYM_OPS
SCALAR_TYPES = torch_serialize._TORCH_TO_SERIALIZE_DTYPE
LAYOUTS = torch_serialize._TORCH_TO_SERIALIZE_LAYOUT
MEMORY_FORMATS = torch_serialize._TORCH_TO_SERIALIZE_MEMORY_FORMAT
EXTENSIONS = torch_serialize._serialization_registry
EXTENSION_NAMESPACES = torch_serialize._deserialization_registry


TorchSerializeError = torch_serialize.SerializeError


class SerializeError(Error, torch_serialize.SerializeError):  # type: ignore[misc]
    """A program cannot be written, a file is damaged, or a file refers to something unknown.

    A subclass of `torch._export.serde.serialize.SerializeError`: code that catches torch's class
    also catches this class. torch's functions raise torch's class, which is not an
    `fxpress.Error`.

    Example:
        >>> import dataclasses
        >>> from fxpress.serialize import deserialize, serialize
        >>> deserialize(dataclasses.replace(serialize(program), exported_program=b"{"))
        Traceback (most recent call last):
            ...
        fxpress.SerializeError: ...
    """

    __module__ = "fxpress"


# The verifiers whose checks fxpress implements. Other dialects have other verifiers.
VERIFIERS = (_Verifier, TrainingIRVerifier)

# Returns the builtin functions that torch's verifier accepts as targets.
allowed_builtins = _Verifier().allowed_builtin_ops

make_union_tag = type(schema.SymInt.create(as_int=0).type).create

Union = schema._Union
SUPPORTED_SERIALIZED_TYPES = pytree.SUPPORTED_SERIALIZED_TYPES
SERIALIZED_TYPE_TO_PYTHON_TYPE = pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE
LEAF_SPEC = pytree._LEAF_SPEC
make_treespec = pytree.TreeSpec
keystr = pytree.keystr
INVALID_INPUT = UserErrorType.INVALID_INPUT
tree_map = pytree.tree_map
DimHint = dynamic_shapes._DimHint
DerivedDim = dynamic_shapes._DerivedDim
check_dynamic_shapes = dynamic_shapes._check_dynamic_shapes
tree_map_with_path = dynamic_shapes._tree_map_with_path
is_supported_equivalence = symbolic_shapes._is_supported_equivalence
without_modes = _disable_current_modes
ModuleCallEntry = exported_program.ModuleCallEntry
ModuleCallSignature = exported_program.ModuleCallSignature
# The higher-order operators that torch serializes by special rules.
SPECIAL_OPERATORS = frozenset({aoti_call_delegate, triton_kernel_wrapper_functional})
# A new GraphModule; if its code has a SyntaxError, torch warns and leaves out the code.
create_graph_module = exported_program._create_graph_module_for_export
schemas_of_operator = torch._C._jit_get_schemas_for_operator
assert_scalar = torch.ops.aten._assert_scalar.default
ScriptObject = torch._C.ScriptObject


# Functions that compute numbers in programs. fxpress serializes them, unlike torch's serializer.
FURTHER_SYM_OPS = (
    *(math.ceil, math.floor, round, abs, operator.abs, operator.not_),
    *(torch.sym_sum, symbolic_shapes.cast_symbool_to_symint_guardless),
)


def is_sym_op(target: Any) -> bool:
    """Return whether a target computes numbers and may be the target of a node in a file."""
    return target in SYM_OPS or target in FURTHER_SYM_OPS


def with_aten(versions: dict[str, int] | None) -> dict[str, int]:
    """Copy {namespace: opset version}; add "aten" with the installed torch's version if missing."""
    complete = dict(versions or {})
    complete.setdefault("aten", int(torch._C._get_max_operator_version()))
    return complete


_module_uses: dict[type, set[int]] = {}  # registered class -> ids of `module_inputs` that need it
# Reentrant, because `module_inputs.__del__` acquires the lock, and the garbage collector may call
# it in the thread that holds the lock.
_module_uses_lock = threading.RLock()
replace_lock_in_children(globals(), "_module_uses_lock")


class module_inputs:  # noqa: N801
    """A `with` block in which pytree treats the modules among inputs as nodes, not as leaves."""

    def __init__(self, example_inputs: Any) -> None:
        self._inputs = example_inputs
        self._used: set[type] = set()

    def __enter__(self) -> None:
        classes = set()
        waiting = [self._inputs]
        while waiting:  # faster than tree_leaves() for deeply nested inputs
            at = waiting.pop()
            if isinstance(at, torch.nn.Module):
                classes.add(type(at))
            elif (node := pytree.SUPPORTED_NODES.get(pytree._get_node_type(at))) is not None:
                waiting.extend(node.flatten_fn(at)[0])
        with _module_uses_lock:
            for cls in classes:
                if cls in pytree.SUPPORTED_NODES and cls not in _module_uses:
                    continue  # the user has registered the class
                self._used.add(cls)
                users = _module_uses.setdefault(cls, set())
                users.add(id(self))
                if cls not in pytree.SUPPORTED_NODES:
                    _register_module(cls)

    def __exit__(self, *error: object) -> None:
        with _module_uses_lock:
            while self._used:
                cls = next(iter(self._used))
                users = _module_uses.get(cls, set())
                users.discard(id(self))
                if not users:
                    _deregister_module(cls)
                    _module_uses.pop(cls, None)
                self._used.discard(cls)

    def __del__(self) -> None:
        for _ in range(10):  # repeated, because a signal handler may raise
            if not getattr(self, "_used", None):
                break
            with suppress(BaseException):
                self.__exit__()


def _register_module(cls: Any) -> None:
    try:
        export_utils.register_module_as_pytree_input_node(cls)
    except BaseException:
        _deregister_module(cls)
        raise


def _deregister_module(cls: type) -> None:
    """Remove a class from pytree's tables, or from the rest after an interrupted removal."""
    spec = pytree.SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
    if spec is not None:
        pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.pop(spec.serialized_type_name, None)
    fx_pytree.SUPPORTED_NODES.pop(cls, None)
    fx_pytree.SUPPORTED_NODES_EXACT_MATCH.pop(cls, None)
    pytree.CONSTANT_NODES.discard(cls)
    pytree.SUPPORTED_NODES.pop(cls, None)


def keyed_children(value: Any) -> list[tuple[Any, Any]] | None:
    """Return (key in the path, child) for each child of a pytree node; None for a leaf."""
    node = pytree.SUPPORTED_NODES.get(pytree._get_node_type(value))
    if node is None:
        return None
    if node.flatten_with_keys_fn is None:
        raise ValueError(f"{type(value)} is registered with pytree without a flatten_with_keys_fn")
    return list(node.flatten_with_keys_fn(value)[0])


def schema_of(target: Any) -> Any:
    """Return the schema of an overload."""
    return target._schema


def guards_code(program: Any) -> list[str]:
    """Return the guards of a program as source texts."""
    return program._guards_code  # type: ignore[no-any-return]


def is_effectful(target: Any) -> bool:
    """Return whether a call of `target` has an effect, so that dead code elimination keeps it."""
    return target in fx_node._side_effectful_functions or effects._get_effect(target) is not None


def is_composite(target: Any) -> bool:
    """Return whether an overload calls other operators (CompositeImplicitAutograd)."""
    name, key = target.name(), "CompositeImplicitAutograd"
    # `_dispatch_has_kernel_for_dispatch_key` raises for operators that only the JIT has.
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return bool(torch._C._dispatch_has_kernel(name) and has_kernel(name, key))


def dump_treespec(spec: Any) -> str:
    """Return the text of a tree spec for a file."""
    return str(pytree.treespec_dumps(spec, schema.TREESPEC_VERSION))


def is_namedtuple(kind: Any) -> bool:
    """Return whether a type in a tree spec is `namedtuple` or a class of named tuples."""
    return bool(kind is namedtuple or pytree.is_namedtuple_class(kind))


# torch's own sympy functions, which may occur in expressions in files.
SYMPY_FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: value
    for name, value in vars(sympy_functions).items()
    if isinstance(value, type)
    and value.__module__ == sympy_functions.__name__
    and name not in ("Max", "Min", "MinMaxBase")
}

_OTHER_FUNCTIONS = """
    torch._C._set_grad_enabled
    torch.autograd.grad_mode.set_grad_enabled
    torch.amp.autocast_mode._enter_autocast
    torch.amp.autocast_mode._exit_autocast
    torch.export.custom_ops._call_custom_autograd_function_in_pre_dispatch
    torch.fx.experimental.symbolic_shapes.cast_symbool_to_symint_guardless
    torch.sym_sum
    torch._functorch.predispatch._add_batch_dim
    torch._functorch.predispatch._remove_batch_dim
    torch._functorch.predispatch._vmap_increment_nesting
    torch._functorch.predispatch._vmap_decrement_nesting
    torch._functorch.predispatch.lazy_load_decompositions
    torch._functorch.predispatch._make_dual
    torch._functorch.predispatch._unpack_dual
    torch._functorch.predispatch._jvp_increment_nesting
    torch._functorch.predispatch._jvp_decrement_nesting
    torch._functorch.predispatch._unwrap_for_grad
    torch._functorch.predispatch._enter_dual_level
    torch._functorch.predispatch._exit_dual_level
"""


def allowed_functions() -> Iterator[Any]:
    """Yield the functions that torch's verifier accepts as targets, except functions on numbers."""
    for path in _OTHER_FUNCTIONS.split():
        found: Any = torch
        for name in path.split(".")[1:]:
            found = getattr(found, name, None)
        if found is not None:
            yield found


def make_fake_mode() -> Any:
    """Return a fake mode with a new shape environment, for reading one program."""
    return FakeTensorMode(
        allow_fallback_kernels=False,
        allow_non_fake_inputs=True,
        shape_env=symbolic_shapes.ShapeEnv(assume_static_by_default=True),
    )


def add_hint(shape_env: Any, expression: Any, hint: Any) -> None:
    """Store an expression's hint if it is missing; newer torch stores only hints of symbols."""
    if expression in shape_env.backed_var_to_val or (
        features.symbols_by_name and not expression.is_Symbol
    ):
        return
    shape_env.add_backed_var_to_val(expression, hint)


def limit_symbols(shape_env: Any, expression: Any) -> None:
    """Constrain the symbols in a size or an offset to at least 0, if they have no range yet."""
    for symbol in expression.free_symbols:
        if symbol not in shape_env.var_to_range:
            shape_env.constrain_symbol_range(symbol, compiler_min=0, compiler_max=int_oo)


def reserve_unbacked_names(shape_env: Any, names: Any) -> None:
    """Advance the counters of unbacked symbols, so that new symbols get none of these names."""
    for kind, counter in (
        (SymT.UNBACKED_FLOAT, "unbacked_symfloat_counter"),
        (SymT.UNBACKED_INT, "unbacked_symint_counter"),
    ):
        prefix = prefix_str[kind]
        numbers = [int(n[len(prefix) :]) for n in names if _is_numbered(n, prefix)]
        setattr(shape_env, counter, getattr(shape_env, counter) + max(numbers, default=-1) + 1)


def _is_numbered(name: str, prefix: str) -> bool:
    digits = name.removeprefix(prefix)
    return digits != name and digits.isdecimal() and digits.isascii() and len(digits) < 10


def is_unbacked(expression: Any) -> bool:
    """Return whether an expression is a symbol whose value is known only when the program runs."""
    import sympy

    return isinstance(expression, sympy.Symbol) and symbolic_shapes.symbol_is_type(
        expression, (SymT.UNBACKED_INT, SymT.UNBACKED_FLOAT)
    )


def unbacked_bindings(value: Any, shape_env: Any, pending: set[Any]) -> dict[Any, Any]:
    """Return {pending symbol: its path in `value`}, and remove these symbols from `pending`."""
    found = symbolic_shapes._free_unbacked_symbols_with_path(
        value, (), shape_env=shape_env, pending=pending, simplify=True
    )
    return dict(found)


def constrain_size(shape_env: Any, expression: Any) -> None:
    """Constrain an expression to the values that a size may have."""
    shape_env._constrain_range_for_size(expression)


def is_of_torch(operator: Any) -> bool:
    """Return whether torch defines the class of an operator, but not in `torch.testing`."""
    module = type(operator).__module__
    return module.startswith("torch.") and not module.startswith("torch.testing.")


def is_torchs(module: types.ModuleType) -> bool:
    """Return whether a module is torch or one of its submodules."""
    return module.__name__.partition(".")[0] == "torch"


# `make_program` sets these fields on a valid program without calling the constructor, whose checks
# are slow. If ExportedProgram has other fields in this torch, `make_program` calls the constructor.
_FIELDS = """
    _graph_module _graph_signature _state_dict _range_constraints _module_call_graph
    _example_inputs _constants _verifiers _guards_code
"""
_FIELDS_ARE_KNOWN = set(_FIELDS.split()) == set(ExportedProgram.__annotations__)


def make_program(fields: dict[str, Any], is_valid: bool) -> ExportedProgram:
    """Return an ExportedProgram from its constructor's arguments; if `is_valid`, skip checks."""
    guards = fields.pop("guards_code")
    root = fields.pop("root")
    if is_valid and _FIELDS_ARE_KNOWN:
        program = ExportedProgram.__new__(ExportedProgram)
        program._graph_module = root
        for name, value in fields.items():
            setattr(program, f"_{name}", value)
    else:
        program = ExportedProgram(root=root, graph=root.graph, **fields)
    program._guards_code = guards
    return program


def replaced(program: ExportedProgram, **fields: Any) -> ExportedProgram:
    """Return a copy of a program; `fields` replaces some of the arguments of `make_program`."""
    names = ("state_dict", "range_constraints", "module_call_graph", "example_inputs")
    same = {name: getattr(program, name) for name in (*names, "constants", "verifiers")}
    return make_program({"guards_code": guards_code(program), **same, **fields}, is_valid=False)
