"""The header of a safetensors file: which tensor is where."""

from __future__ import annotations

import json
import math
from typing import Any, NamedTuple

LONGEST = 100_000_000  # bytes, by the format
METADATA = "__metadata__"
NUMBER = "fxpress_save"  # the key of the save's number in the metadata
# The names of the format for dtypes -> those of torch, bytes of an item.
TYPES = {
    **{"F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2)},
    **{"BF16": ("bfloat16", 2), "C64": ("complex64", 8), "BOOL": ("bool", 1)},
    **{"I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1)},
    **{"U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1)},
    **{"F8_E4M3": ("float8_e4m3fn", 1), "F8_E4M3FNUZ": ("float8_e4m3fnuz", 1)},
    **{"F8_E5M2": ("float8_e5m2", 1), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 1)},
    "F8_E8M0": ("float8_e8m0fnu", 1),
}


class Place(NamedTuple):
    """Where a tensor is.

    Attributes:
        dtype: torch's name.
        shape: its sizes.
        begin: its first byte, from the begin of the file.
        size: its bytes.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    size: int


def read_header(text: bytes, whole: int) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the metadata and the places of the tensors of a file.

    Args:
        text: the header, without the eight bytes of its length.
        whole: the bytes of the file.

    Raises:
        ValueError: the header is damaged, or is not of a file of that size.
    """
    begin = 8 + len(text)
    try:
        header = json.loads(text)
        metadata = header.pop(METADATA, {})
        places = {name: _place(entry, begin) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
        raise ValueError(f"its header is wrong: {e!r}") from None
    if not isinstance(metadata, dict):
        raise ValueError("its metadata are none")
    end = begin
    for place in sorted(places.values(), key=lambda place: (place.begin, place.size)):
        if place.begin != end:
            raise ValueError("its tensors overlap, or leave a gap")
        end += place.size
    if end != whole:
        raise ValueError(f"it has {whole} bytes instead of {end}")
    return metadata, places


def _place(entry: Any, base: int) -> Place:
    dtype, itemsize = TYPES[entry["dtype"]]
    shape = tuple(int(n) for n in entry["shape"])
    begin, end = (int(n) for n in entry["data_offsets"])
    if min((*shape, begin)) < 0 or end - begin != math.prod(shape) * itemsize:
        raise ValueError(f"{shape} of {dtype} at {begin} to {end}")
    return Place(dtype, shape, base + begin, end - begin)
