"""Writing programs with torch and with fxpress side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from torch._export.serde import schema
from torch._export.serde import serialize as torch_serialize
from torch.export import ExportedProgram

from fxpress.serialize import _bytes_to_dataclass, _to_json_bytes, canonicalize, serialize
from tests.support.archived import assert_archives_as_torch
from tests.support.deserialized import assert_reads_as_torch
from tests.support.numbered import with_numbered_graphs as with_numbered_graphs
from tests.support.unflatten_compare import assert_untouched, snapshot


def first_difference(ours: bytes, theirs: bytes) -> str:
    at = next(
        (i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b),
        min(len(ours), len(theirs)),
    )
    around = slice(max(0, at - 120), at + 120)
    return f"at byte {at}:\nours   {ours[around]!r}\ntorch  {theirs[around]!r}"


def assert_serializes_as_torch(program: ExportedProgram, **options: Any) -> Any:
    """Assert equal bytes in all four parts, and an unchanged program; return fxpress's result.

    If torch fails, fxpress must raise an exception of the same type, which is returned.
    """
    before = snapshot(program)
    try:
        theirs = torch_serialize.serialize(program, **options)
    except Exception as error:
        if not program.graph_signature.output_specs:  # Z-106: torch fails without outputs
            ours = serialize(program, **options)
            assert_untouched(program, before)
            return ours
        with pytest.raises(type(error)) as caught:
            serialize(program, **options)
        return caught.value
    ours = serialize(program, **options)
    assert_untouched(program, before)
    wanted = with_numbered_graphs(theirs.exported_program)
    assert ours.exported_program == wanted, first_difference(ours.exported_program, wanted)
    assert rewritten(wanted) == wanted
    for part in ("state_dict", "constants", "example_inputs"):
        assert getattr(ours, part) == getattr(theirs, part), part
    return ours


def typed(value: Any) -> Any:
    """A value with all types in it, so that an int differs from a member of an enumeration."""
    if isinstance(value, dict):
        return type(value), [(typed(key), typed(inner)) for key, inner in value.items()]
    if isinstance(value, (list, tuple)):
        return type(value), [typed(inner) for inner in value]
    if dataclasses.is_dataclass(value):  # unions of ours have only the field that is set
        fields = {k: v for k, v in vars(value).items() if v is not None}
        return type(value), [(key, typed(fields[key])) for key in sorted(fields)]
    return type(value), value


def rewritten(text: bytes, type_name: str = "ExportedProgram") -> bytes:
    """JSON of the schema, read into objects and written again."""
    return _to_json_bytes(_bytes_to_dataclass(getattr(schema, type_name), text))


def assert_travels_as_torch(program: ExportedProgram, **options: Any) -> None:
    """The same bytes, the same program from them, and the same canonical form."""
    written = assert_serializes_as_torch(program, **options)
    if isinstance(written, Exception):
        return
    assert_reads_as_torch(written)
    assert_canonical_as_torch(written.exported_program, set(program.constants))


def assert_canonical_as_torch(text: bytes, constants: set[str]) -> Any:
    """Equal canonical forms, as objects and as bytes; ours is returned."""
    stored = torch_serialize._bytes_to_dataclass(schema.ExportedProgram, text)
    ours = canonicalize(stored, constants)
    assert torch_serialize._to_json_bytes(stored) == text, "canonicalize changed its input"
    if not stored.graph_module.graph.outputs:
        return ours  # Z-156: torch fails without outputs
    theirs = torch_serialize.canonicalize(stored, constants)
    assert typed(ours) == typed(theirs) or b'"NaN"' in text, "not equal"  # NaN is unequal to itself
    bytes_of = torch_serialize._to_json_bytes
    assert bytes_of(ours) == bytes_of(theirs)
    return ours


def both_ways(program: ExportedProgram) -> None:
    """Assert that bytes and files equal torch's, and give equal programs."""
    assert_travels_as_torch(program)
    assert_archives_as_torch(program)


def both_ways_decomposed(program: ExportedProgram) -> None:
    """Assert `both_ways` for a program that torch has decomposed."""
    try:
        decomposed = program.run_decompositions()
    except Exception:  # torch does not decompose it
        return
    assert_travels_as_torch(decomposed)
