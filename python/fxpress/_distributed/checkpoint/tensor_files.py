"""Find tensors in safetensors files: in a single file, or in the files that an index names."""

from __future__ import annotations

from typing import Any

import torch

from fxpress._distributed.checkpoint.boxes import Extent, strides_of
from fxpress._distributed.checkpoint.weights import Stored, Weights, add, whole
from fxpress._files.archive.tensor_file import TensorFile
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.format.weights_location import is_file_name
from fxpress._files.remote.ranges import Checked
from fxpress._files.remote.remote_file import AnyPath
from fxpress._files.serde.limits import Budget

INDEX, ALONE, SUFFIX = names.TENSORS_INDEX, names.TENSORS_ALONE, ".safetensors"


def extent_in(file: TensorFile, name: str, crc: int | None = None) -> Extent:
    """Return the location of a tensor; UnsupportedError if torch does not have its dtype."""
    place, dtype = file.place(name), file.dtype(name)
    part = None
    if crc is not None:
        part = Checked(file.file, place.begin, place.size, crc, f"tensor {name!r}")
    return Extent(file.file, place.begin, dtype, strides_of(place.shape), part, True)


def in_file(file: TensorFile, name: str) -> Stored:
    """Describe a tensor in a file; ArchiveError if the file has no tensor of that name."""
    place = file.place(name)
    dtype = getattr(torch, place.dtype, place.dtype)
    return whole(dtype, place.shape, lambda: extent_in(file, name))


def add_file(weights: Weights, path: AnyPath, budget: Budget) -> None:
    """Add all tensors of a file to `weights`."""
    file = TensorFile(weights.files.file(path), budget)
    weights.facts.append([path.name, file.file.size, file.number])
    for name in file.places:
        add(weights, name, in_file(file, name), str(path))


def add_by_index(weights: Weights, path: AnyPath, index: Any, budget: Budget) -> None:
    """Add the tensors in the `weight_map` of an index, such as an index of transformers."""
    try:
        place_of = {str(name): str(file) for name, file in index["weight_map"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ArchiveError(f"{path} is damaged: expected a weight_map: {error!r}") from None
    files = {file: weights.files.file(sibling_of(path, file)) for file in place_of.values()}
    sizes = weights.files.each(lambda file: file.size, files.values())
    opened = {file: TensorFile(each, budget) for file, each in files.items()}
    for (file, each), size in zip(opened.items(), sizes, strict=True):
        weights.facts.append([file, size, each.number])
    for name, file in place_of.items():
        add(weights, name, in_file(opened[file], name), str(path))


def sibling_of(index: AnyPath, name: str) -> AnyPath:
    """Return the path of a file that an index names; ArchiveError for one in another folder."""
    if not is_file_name(name, SUFFIX):
        raise ArchiveError(f"{index} is damaged: {name!r} is not a file next to the index")
    return index.with_name(name)
