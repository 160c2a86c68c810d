"""The dtypes that files can hold: names, sizes, and the codes of each format."""

from __future__ import annotations

from typing import NamedTuple


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
