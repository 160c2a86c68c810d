"""A hash of what a program computes."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import pickle
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _native, _torch_compat
from fxpress import _torch_compat_serde as compat
from fxpress._errors import UnsupportedError
from fxpress._serde.operators import schema_of
from fxpress._serde.program import facts_of
from fxpress._serde.schema import SCHEMA
from fxpress._serde.targets import find_target
from fxpress._serde.treespecs import TreeSpecWriter

# `OperatorTraits` of `csrc/serde/graph_hash.h`: (aliased, written, random, effectful, changes_mode)
_Traits = tuple[list[str], list[str], bool, bool, bool]


@functools.cache
def _traits(target: Any) -> _Traits:
    """What an operator does beside returning new values."""
    if target in compat.SYM_OPS:
        return [], [], False, False, False
    schema = schema_of(target)
    if schema is None:
        is_operator = isinstance(target, _torch_compat.HigherOrderOperator)
        acts = is_operator and compat.is_effectful(target)
        return [], [], False, acts, not is_operator
    aliases = {a.name: a.alias_info for a in schema.arguments if a.alias_info is not None}
    written = [name for name, info in aliases.items() if info.is_write]
    acts = not schema.returns and not written
    return (
        list(aliases),
        written,
        compat.is_random(target),
        acts or compat.is_effectful(target),
        False,
    )


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


def _digest(value: Any, name: str) -> bytes:
    """The hash of a constant or a part of the state.

    Raises:
        UnsupportedError: nothing says what is in it.
    """
    if isinstance(value, compat.FakeTensor):
        return _new_hash(SCHEMA.encode_tensor_meta(value)).digest()
    if type(value) in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided:
        if value.is_quantized:
            parts: Any = (value.int_repr(), str(value.qscheme()), str(value))
        else:
            return _digest_tensor(value)
    elif isinstance(value, compat.ScriptObject) and value._has_method("__getstate__"):
        parts = (value._type().qualified_name(), value.__getstate__())
    elif isinstance(value, (tuple, list)):
        parts = value
    elif isinstance(value, dict):
        parts = tuple(value.items())
    else:
        try:
            return _new_hash(pickle.dumps(value, protocol=2)).digest()
        except Exception as e:
            raise UnsupportedError(f"the constant {name} cannot be hashed: {e}") from e
    made = _new_hash(type(value).__qualname__.encode())
    for part in parts:
        made.update(_digest(part, name))
    return made.digest()


def hash_parts(
    program: ExportedProgram, include_state: bool
) -> tuple[_native.Document, bytes, dict[str, bytes], list[bytes]]:
    """A program as a document, its hash, and those of its constants and of the document's nodes."""
    treespecs = TreeSpecWriter()
    objects: dict[str, Any] = {}
    with compat.module_inputs(program.example_inputs):
        document = SCHEMA.encode_document(
            program.graph_module,
            program.graph_signature,
            program.module_call_graph,
            facts_of(program, treespecs, None),
            objects,
            treespecs,
        )
    state = program.state_dict
    buffers = set(program.graph_signature.buffers)
    values = {**objects, **{k: v for k, v in program.constants.items() if k not in buffers}}
    if include_state:
        values.update(program.constants, **state)
    digests = {name: _digest(value, name) for name, value in values.items()}
    traits = {text: _traits(find_target(text)) for text in document.targets()}
    whole, nodes = document.hash(traits, digests)
    return document, whole, digests, nodes


def graph_hash(program: ExportedProgram, *, include_state: bool = False) -> str:
    """A hash of what a program computes, the same in every process and on every machine.

    It is the same for programs that differ in names of values and symbols, in the order of nodes
    that do not depend on each other, in metadata, hints and stack traces alone. It differs when
    anything that is computed differs: operators, arguments, shapes, strides, dtypes, devices, the
    signature, ranges of symbols, guards, and the values of constants. Of parameters and buffers
    names, shapes and dtypes enter.

    The order among writes to a storage and reads of it enters, as does that of random operators, of
    effects, and of calls that change a mode.

    Args:
        include_state: the values of parameters and buffers enter too.

    Returns:
        64 hexadecimal digits. Another version of fxpress may give others.

    Raises:
        SerializeError: a node cannot be written; the message names it.
        fxpress.UnsupportedError: the program has something that fxpress cannot write, or a constant
            that cannot be hashed.
    """
    return hash_parts(program, include_state)[1].hex()
