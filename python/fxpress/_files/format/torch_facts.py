"""What is known of torch without importing it: the schema of files, operators, dtypes."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any, NamedTuple

from fxpress import _native

# Of an operator: arguments whose storage its results may share, arguments that it writes, whether
# it draws random numbers, has another effect, or changes a mode.
Traits = tuple[list[str], list[str], bool, bool, bool]


@functools.cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(Path(__file__).with_name("torch.json").read_bytes())
    return facts


@functools.cache
def schema() -> _native.Schema:
    """Return the schema of programs in files."""
    return _native.Schema(
        [
            (name, is_union, [tuple(field) for field in fields])
            for name, is_union, fields in _facts()["schema"]
        ]
    )


def operators() -> dict[str, Traits]:
    """Return what is known of each operator, by its name in files."""
    known: dict[str, Traits] = _facts()["operators"]
    return known


def torch_version() -> str:
    """Return the release of torch whose operators and schema these are."""
    return str(_facts()["torch"])


class Dtype(NamedTuple):
    """A dtype. `number` is that of `ScalarType` in programs, `code` that of safetensors files."""

    name: str  # torch's, without "torch."
    itemsize: int  # bytes
    number: int
    code: str | None


DTYPES = tuple(
    Dtype(*row)
    for row in (
        ("uint8", 1, 1, "U8"),
        ("int8", 1, 2, "I8"),
        ("int16", 2, 3, "I16"),
        ("int32", 4, 4, "I32"),
        ("int64", 8, 5, "I64"),
        ("float16", 2, 6, "F16"),
        ("float32", 4, 7, "F32"),
        ("float64", 8, 8, "F64"),
        ("complex32", 4, 9, None),
        ("complex64", 8, 10, "C64"),
        ("complex128", 16, 11, None),
        ("bool", 1, 12, "BOOL"),
        ("bfloat16", 2, 13, "BF16"),
        ("uint16", 2, 28, "U16"),
        ("float8_e4m3fn", 1, 29, "F8_E4M3"),
        ("float8_e5m2", 1, 30, "F8_E5M2"),
        ("float8_e4m3fnuz", 1, 31, "F8_E4M3FNUZ"),
        ("float8_e5m2fnuz", 1, 32, "F8_E5M2FNUZ"),
        ("float8_e8m0fnu", 1, 33, "F8_E8M0"),
        ("uint32", 4, 34, "U32"),
        ("uint64", 8, 35, "U64"),
    )
)
BY_NUMBER = {dtype.number: dtype for dtype in DTYPES}
BY_CODE = {dtype.code: dtype for dtype in DTYPES if dtype.code is not None}
