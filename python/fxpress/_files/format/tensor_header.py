"""Read the header of a safetensors file: JSON with each tensor's dtype, shape and location."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from fxpress._files.format.fields import expect_int, load_json, sizes_in
from fxpress._files.format.recognition import MOST_HEADER_BYTES
from fxpress._files.format.torch_facts import BY_CODE

_SHOWN = 20  # how many characters of an unknown dtype's name are kept
METADATA = "__metadata__"
# All files of one save contain the same random text in their metadata, with this key.
NUMBER = "fxpress_save"


class Place(NamedTuple):
    """The dtype, shape and location of a tensor."""

    dtype: str  # torch's name; for an unknown dtype, the quoted text in the file
    shape: tuple[int, ...]
    begin: int  # offset in the file, in bytes
    size: int  # in bytes


def header_length(begin: bytes, file_size: int) -> int:
    """Return the length of the header, which the first eight bytes of the file encode."""
    if file_size < 8:
        raise ValueError("it is truncated")
    length, most = int.from_bytes(begin, "little"), min(MOST_HEADER_BYTES, file_size - 8)
    if length > most:
        raise ValueError(f"its header is too long: expected at most {most} bytes, found {length}")
    return length


def read_header(text: bytes, file_size: int) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the metadata, and a dict from names to `Place`; ValueError for a damaged header."""
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
            raise ValueError(f"its tensors overlap or leave a gap at byte {min(place.begin, end)}")
        end += place.size
    if end != file_size:
        raise ValueError(f"it has {file_size} bytes, expected {end}")
    return metadata, places


def _place(entry: Any, base: int) -> Place:
    code = entry["dtype"]
    if not isinstance(code, str):
        raise TypeError(f"expected the dtype to be a string, found {code!r}")
    dtype = BY_CODE.get(code)
    name = repr(code[:_SHOWN]) if dtype is None else dtype.name
    shape = sizes_in(entry["shape"])
    begin, end = map(expect_int, entry["data_offsets"])
    size = end - begin
    is_sized = size >= 0 if dtype is None else size == math.prod(shape) * dtype.itemsize
    if begin < 0 or not is_sized:
        raise ValueError(f"data_offsets [{begin}, {end}] do not fit shape {shape} and dtype {name}")
    return Place(name, shape, base + begin, size)
