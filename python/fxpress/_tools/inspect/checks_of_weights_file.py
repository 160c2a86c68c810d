"""Look at the file of weights beside an archive."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fxpress import _native
from fxpress._files.format.fields import DEPTH, an_int, objects_of
from fxpress._files.format.package import memory_for
from fxpress._files.format.tensor_header import LONGEST, NUMBER, Place, read_header
from fxpress._files.format.tensors import dtype_of
from fxpress._files.format.weights_location import read_place


def check_weights_file(
    archive: str | os.PathLike[str], text: str, wanted: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, bool]]:
    """Yield what is wrong with the file of weights that an archive names; values are not read.

    Args:
        archive: the path of the archive.
        text: of its record that names the file; empty where weights were not saved.
        wanted: name -> `TensorMeta` of each weight.
    """
    if not text:
        yield "the weights were not saved: a load takes load_weights=False", True
        return
    if _native.is_nested_deeper(text, DEPTH):
        yield f"it has more than {DEPTH} values within each other", False
        return
    try:
        name, number = read_place(text)
        path = Path(os.path.realpath(archive)).with_name(name)
        metadata, places = _header(path)
    except (OSError, ValueError) as e:
        said = f"{e.filename}: {e.strerror}" if isinstance(e, OSError) else str(e)
        yield said, False
        return
    if metadata.get(NUMBER) != number:
        yield f"{path} belongs to another archive, or to another save of it", False
    for weight, meta in wanted.items():
        place = places.get(weight)
        if place is None:
            yield f"{path} has no {weight!r}", False
            continue
        dtype, _ = dtype_of(an_int(meta["dtype"]))
        sizes = tuple(size.get("as_int") for size in meta["sizes"])
        if (place.dtype, place.shape) != (dtype, sizes):
            found = f"{place.dtype}{list(place.shape)}"
            yield f"{path}: {weight!r} is {found} instead of {dtype}{list(sizes)}", False


def _header(path: Path) -> tuple[dict[str, Any], dict[str, Place]]:
    with path.open("rb") as file:
        whole = os.fstat(file.fileno()).st_size
        length = int.from_bytes(file.read(8), "little")
        if not 0 <= length <= min(LONGEST, whole - 8):
            raise ValueError(f"{path} is damaged: its header is too long")
        text = file.read(length)
    if _native.is_nested_deeper(text, DEPTH):
        raise ValueError(f"{path} is damaged: more than {DEPTH} values within each other")
    left = memory_for(whole)
    if objects_of(text, left) > left:
        raise ValueError(f"{path}: its header needs too much memory for a file of this size")
    try:
        return read_header(text, whole)
    except ValueError as e:
        raise ValueError(f"{path} is damaged: {e}") from None
