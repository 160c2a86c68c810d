"""Tensors in safetensors files: in one alone, or in those that an index names."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch

from fxpress._distributed.checkpoint.boxes import Extent, strides_of
from fxpress._distributed.checkpoint.weights import Stored, Weights, add, whole
from fxpress._files.archive.tensor_file import DTYPES as DTYPES
from fxpress._files.archive.tensor_file import read_header_of
from fxpress._files.errors import ArchiveError
from fxpress._files.format.tensor_header import NUMBER
from fxpress._files.format.tensor_header import Place as InFile
from fxpress._files.remote.ranges import Checked, File
from fxpress._files.remote.url_path import AnyPath
from fxpress._files.serde.limits import Budget

INDEX, ALONE, SUFFIX = "model.safetensors.index.json", "model.safetensors", ".safetensors"


class Header(NamedTuple):
    """The header of a file.

    Attributes:
        file: the file.
        metadata: texts that it carries.
        places: name -> where the tensor is.
    """

    file: File
    metadata: dict[str, Any]
    places: dict[str, InFile]

    def check_number(self, number: str) -> None:
        """Raise ArchiveError unless the file is of the save with this number."""
        if self.metadata.get(NUMBER) != number:
            raise ArchiveError(
                f"{self.file.path} belongs to another checkpoint, or to another save of it"
            )

    def extent(self, name: str, crc: int | None = None) -> Extent:
        """Return the place of a tensor; ArchiveError when there is none of that name."""
        place = self.places.get(name)
        if place is None:
            raise ArchiveError(f"{self.file.path} has no tensor {name!r}")
        part = None
        if crc is not None:
            part = Checked(self.file, place.begin, place.size, crc, f"tensor {name!r}")
        dtype = getattr(torch, place.dtype)
        return Extent(self.file, place.begin, dtype, strides_of(place.shape), part, True)


def header_of(file: File, budget: Budget) -> Header:
    """Return the header of a file.

    Raises:
        OSError: it cannot be read.
        ArchiveError: it is damaged.
        LimitError: the header is too large, or nested too deeply.
    """
    return Header(file, *read_header_of(file.read, file.size, str(file.path), budget))


def in_file(header: Header, name: str) -> Stored:
    """Return a tensor of a file; ArchiveError when there is none of that name."""
    extent = header.extent(name)
    return whole(extent.dtype, header.places[name].shape, lambda: extent)


def add_file(weights: Weights, path: AnyPath, budget: Budget) -> None:
    """Add all tensors of a file."""
    header = header_of(weights.files.file(path), budget)
    weights.facts.append([path.name, header.file.size, _number_of(header)])
    for name in header.places:
        add(weights, name, in_file(header, name), str(path))


def _number_of(header: Header) -> str | None:
    number = header.metadata.get(NUMBER)
    return number if isinstance(number, str) else None


def add_by_index(weights: Weights, path: AnyPath, said: Any, budget: Budget) -> None:
    """Add the tensors that an index names: those of transformers, and of other writers.

    Args:
        weights: gets them.
        path: of the index.
        said: what it says.
        budget: the budget of the load.

    Raises:
        OSError: a file cannot be read.
        ArchiveError: the index or a file is damaged, or a tensor is not where the index says.
    """
    try:
        place_of = {str(name): str(file) for name, file in said["weight_map"].items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise ArchiveError(f"{path} is damaged: it has no weight_map: {error!r}") from None
    files = {file: weights.files.file(beside(path, file)) for file in place_of.values()}
    sizes = weights.files.each(lambda file: file.size, files.values())
    headers = {file: header_of(each, budget) for file, each in files.items()}
    for (file, header), size in zip(headers.items(), sizes, strict=True):
        weights.facts.append([file, size, _number_of(header)])
    for name, file in place_of.items():
        add(weights, name, in_file(headers[file], name), str(path))


def beside(index: AnyPath, name: str) -> AnyPath:
    """Return the path of a file that an index names; ArchiveError for one in another folder."""
    if os.path.basename(name) != name or not name.endswith(SUFFIX) or not name.isprintable():
        raise ArchiveError(f"{index} is damaged: {name!r} is no file beside it")
    return index.with_name(name)
