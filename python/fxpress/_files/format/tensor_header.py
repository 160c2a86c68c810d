"""The header of a safetensors file, which locates the tensors."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fxpress._files.format.fields import expect_int, load_json, sizes_in
from fxpress._files.format.recognition import LONGEST
from fxpress._files.format.torch_facts import BY_CODE

_LONGEST_CODE = 20  # characters kept of an unknown dtype
METADATA = "__metadata__"
NUMBER = "fxpress_save"  # the metadata key of the save's number


class Place(NamedTuple):
    """The dtype, shape and location of a tensor."""

    dtype: str  # torch's name; for an unknown dtype, the quoted text in the file
    shape: tuple[int, ...]  # sizes
    begin: int  # offset in the file
    size: int  # in bytes


def header_length(begin: bytes, whole: int) -> int:
    """Return the length of the header, from the first eight bytes of a file of `whole` bytes."""
    if whole < 8:
        raise ValueError("it is truncated")
    length = int.from_bytes(begin, "little")
    if length > min(LONGEST, whole - 8):
        raise ValueError("its header is too long")
    return length


def read_header(text: bytes, whole: int) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the metadata and locations of tensors in a header; ValueError if it is damaged."""
    begin = 8 + len(text)
    try:
        header = load_json(text)
        metadata = header.pop(METADATA, {})
        places = {name: _place(entry, begin) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as e:
        raise ValueError(f"its header is wrong: {e!r}") from None
    if not isinstance(metadata, dict):
        raise ValueError(f"expected its metadata to be an object, got a {type(metadata).__name__}")
    end = begin
    for place in sorted(places.values(), key=lambda place: (place.begin, place.size)):
        if place.begin != end:
            raise ValueError("its tensors overlap, or leave a gap")
        end += place.size
    if end != whole:
        raise ValueError(f"it has {whole} bytes, expected {end}")
    return metadata, places


def _place(entry: Any, base: int) -> Place:
    code = entry["dtype"]
    if not isinstance(code, str):
        raise TypeError(f"the dtype is {code!r}")
    dtype = BY_CODE.get(code)
    name = repr(code[:_LONGEST_CODE]) if dtype is None else dtype.name
    shape = sizes_in(entry["shape"])
    begin, end = map(expect_int, entry["data_offsets"])
    size = end - begin
    is_sized = size >= 0 if dtype is None else size == math.prod(shape) * dtype.itemsize
    if begin < 0 or not is_sized:
        raise ValueError(f"{shape} of {name} at {begin} to {end}")
    return Place(name, shape, base + begin, size)
