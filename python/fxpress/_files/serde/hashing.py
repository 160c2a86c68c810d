"""Hash the computation of a program. Metadata and the names of values do not affect the hash."""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.arguments import check_program
from fxpress._base.errors import UnsupportedError, is_about_input
from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._files.format.torch_facts import Traits
from fxpress._files.serde.body_constants import lift_body_constants
from fxpress._files.serde.operators import cached_if_permanent, schema_of
from fxpress._files.serde.program import facts_of
from fxpress._files.serde.schema import SCHEMA
from fxpress._files.serde.targets import find_target
from fxpress._files.serde.treespecs import TreeSpecWriter
from fxpress._torch import fx as torch_fx
from fxpress._torch import serde as compat
from fxpress._torch.watching import operation, phase

# These operators write their running statistics, but their schemas do not declare that.
_BATCH_NORMS = (
    "batch_norm",
    "instance_norm",
    "native_batch_norm",
    "_batch_norm_impl_index",
    "cudnn_batch_norm",
    "miopen_batch_norm",
)
_STATISTICS = ("running_mean", "running_var")


@cached_if_permanent
def traits_of(target: Any) -> Traits:
    """Return the effects of an operator or function."""
    if compat.is_sym_op(target):
        return [], [], False, False, False
    schema = schema_of(target)
    if schema is None:
        is_operator = isinstance(target, torch_fx.HigherOrderOperator)
        has_effect = is_operator and compat.is_effectful(target)
        return [], [], False, has_effect, not is_operator
    aliases = {a.name: a.alias_info for a in schema.arguments if a.alias_info is not None}
    written = [name for name, info in aliases.items() if info.is_write]
    aliased = list(aliases)
    is_overload = isinstance(target, torch_fx.OpOverload)
    # A composite operator may return a view, although its schema does not declare that.
    if not aliases and is_overload and compat.is_composite(target):
        aliased = [a.name for a in schema.arguments]
    if schema.name.removeprefix("aten::") in _BATCH_NORMS:
        written += _STATISTICS
    has_effect = (not schema.returns and not written) or compat.is_effectful(target)
    is_random = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
    return aliased, written, is_random, has_effect, False


def _new_hash(data: bytes) -> hashlib.blake2b:
    return hashlib.blake2b(data, digest_size=32)


def _digest_tensor(tensor: torch.Tensor) -> bytes:
    made = _new_hash(repr((tensor.dtype, tuple(tensor.shape), tensor.layout)).encode())
    with torch.no_grad():
        held = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    size = held.numel() * held.element_size()
    if size:
        made.update((ctypes.c_char * size).from_address(held.data_ptr()))
    return made.digest()


def _parts(value: Any) -> tuple[Any, ...] | None:
    """Split a container, script object or special tensor into parts to hash; None for others."""
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            if not hasattr(value, "__tensor_flatten__"):
                return None
            names, context = value.__tensor_flatten__()
            return (*names, *(getattr(value, name) for name in names), context)
        if value.layout is torch.sparse_coo:
            value = value.coalesce()
            return tuple(value.shape), value.indices(), value.values()
        if value.layout in (torch.sparse_csr, torch.sparse_bsr):
            return tuple(value.shape), value.crow_indices(), value.col_indices(), value.values()
        if value.layout in (torch.sparse_csc, torch.sparse_bsc):
            return tuple(value.shape), value.ccol_indices(), value.row_indices(), value.values()
        if not value.is_quantized:
            return None
        if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
            return value.int_repr(), value.q_scale(), value.q_zero_point()
        channels = value.q_per_channel_scales(), value.q_per_channel_zero_points()
        return (value.int_repr(), *channels, value.q_per_channel_axis())
    if isinstance(value, compat.ScriptObject) and value._has_method("__getstate__"):
        return value._type().qualified_name(), value.__getstate__()
    if isinstance(value, (tuple, list)):
        return tuple(value)
    return tuple(value.items()) if isinstance(value, dict) else None


_PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device)


def _digest(value: Any, name: str) -> bytes:
    """Return the hash of a constant or of a part of the state."""
    if type(value) in _PLAIN:
        return _new_hash(f"{type(value).__qualname__} {value!r}".encode()).digest()
    try:
        if isinstance(value, torch.Tensor) and (value.is_meta or type(value) is compat.FakeTensor):
            return _new_hash(SCHEMA.encode_tensor_meta(value)).digest()
        parts = _parts(value)
        if parts is None and type(value) in (torch.Tensor, torch.nn.Parameter):
            return _digest_tensor(value)
    except Exception as e:
        if not is_about_input(e):
            raise
        raise UnsupportedError(f"the constant {name} cannot be hashed: {e}") from e
    if parts is None:
        raise UnsupportedError(f"the constant {name} cannot be hashed: it is a {type(value)}")
    layout = value.layout if isinstance(value, torch.Tensor) else ""
    made = _new_hash(f"{type(value).__qualname__} {layout}".encode())
    for part in parts:
        made.update(_digest(part, name))
    return made.digest()


def _bytes_of(value: Any) -> int:
    """Return the number of bytes that are hashed for a value; 0 unless it is a plain tensor."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.is_meta:
        return 0
    return int(value.numel() * value.element_size())


def _digests(values: dict[str, Any], progress: Progress) -> dict[str, bytes]:
    """Return name -> hash of the value, for a dict of values."""
    made = {}
    with reporting(progress, "hashing values", sum(map(_bytes_of, values.values()))) as report:
        for name, value in values.items():
            made[name] = _digest(value, name)
            if report is not None:
                report(_bytes_of(value))
    return made


def hash_parts(
    program: ExportedProgram, include_state: bool, progress: Progress = False
) -> tuple[_native.Document, bytes, dict[str, bytes], bytes]:
    """Return (schema document, hash of the program, hashes of values by name, hashes of nodes).

    A hash has 32 bytes. The hashes of nodes are joined in the order of nodes in the document.
    """
    check_program(program, "program")
    program = lift_body_constants(program)
    treespecs = TreeSpecWriter()
    objects: dict[str, Any] = {}
    with phase("graph"), compat.module_inputs(program.example_inputs):
        document = _native.on_unchanged(
            program.graph,
            lambda: SCHEMA.encode_document(
                program.graph_module,
                program.graph_signature,
                program.module_call_graph,
                facts_of(program, treespecs, None),
                objects,
                treespecs,
            ),
        )
    state = program.state_dict
    buffers = set(program.graph_signature.buffers)
    values = {**objects, **{k: v for k, v in program.constants.items() if k not in buffers}}
    if include_state:
        values.update(program.constants, **state)
    with phase("values"):
        digests = _digests(values, progress)
    traits = {text: traits_of(find_target(text)) for text in document.targets()}
    whole, nodes = document.hash(traits, digests)
    return document, whole, digests, nodes


@operation("graph_hash", lambda _, program, **__: {"nodes": len(program.graph.nodes)})
def graph_hash(
    program: ExportedProgram, *, include_state: bool = False, progress: Progress = False
) -> str:
    """Return a hash of the computation of a program, equal in every process and on every machine.

    Two programs have equal hashes if they differ only in the names of values and symbols, in the
    order of independent nodes, or in metadata, hints and stack traces. The hashes differ if the
    computations differ: in operators, arguments, shapes, strides, dtypes, devices, the signature,
    ranges of symbols, guards, or the values of constants. Parameters and buffers contribute their
    names, shapes and dtypes.

    The hash depends on the order of operators that read and write one storage, are random, have
    side effects or change a mode. It depends on the names of parameters, buffers and keyword
    arguments, because callers use them. It does not depend on whether inputs share a storage.

    torch does not have this function.

    Args:
        program: the program, which is not modified.
        include_state: also hash the values of parameters and buffers.
        progress: how to show the progress of hashing values, in bytes: True or a function of (done,
            total, what).

    Returns:
        64 hexadecimal digits. Other versions of fxpress may return different digits.

    Raises:
        fxpress.SerializeError: a node cannot be written; the message names it.
        fxpress.UnsupportedError: fxpress cannot write a part of the program, or cannot hash a
            constant.
        TypeError: `program` is not an ExportedProgram, or `progress` is of a wrong type.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> again = torch.export.export(model, (x,))
        >>> fxpress.graph_hash(again) == fxpress.graph_hash(program)
        True
    """
    check_progress(progress)
    return hash_parts(program, include_state, progress)[1].hex()
