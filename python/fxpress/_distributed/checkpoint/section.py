"""Write and read the section that `ArchiveWriter` adds to an index: slices and their files.

Other readers of the index use only its weight_map, which names the tensors that one file contains
in full. The name of a slice in a file includes the slice's offsets, so that other readers do not
mistake the slice for the entire tensor.
"""

from __future__ import annotations

import functools
import itertools
import math
import threading
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.storage import WriteResult

from fxpress._base.errors import is_about_input
from fxpress._distributed.checkpoint.boxes import Extent, strides_of
from fxpress._distributed.checkpoint.tensor_files import extent_in, sibling_of
from fxpress._distributed.checkpoint.values import from_json
from fxpress._distributed.checkpoint.weights import Slice, Stored, Weights
from fxpress._files.archive.tensor_file import CODES, DTYPES, TensorFile
from fxpress._files.archive.weight_files import difference_of
from fxpress._files.errors import ArchiveError
from fxpress._files.format.fields import sizes_in
from fxpress._files.remote.remote_file import AnyPath
from fxpress._files.serde.limits import Budget

KEY, FORMAT, VERSION = "fxpress", "fxpress checkpoint", 1
_SLICE_BYTES = 300  # the estimated bytes of the objects that describe a slice


class Part(NamedTuple):
    """A slice that a rank has written."""

    file: str  # the name of the file
    temporary: str  # the name of the file until the checkpoint is complete
    whole: int  # the size of the file, in bytes
    crc: int  # CRC-32 of the slice


def key_of(name: str, whole: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> str:
    """Return a slice's name in a file: `name` for an entire tensor, else `name` and the offsets."""
    if tuple(sizes) == tuple(whole):
        return name
    return f"{name}@{','.join(map(str, offsets))}"


def index_of(metadata: Metadata, results: list[WriteResult], number: str) -> dict[str, Any]:
    """Return the contents of the index of a checkpoint."""
    described = metadata.state_dict_metadata
    parts = [result for result in results if isinstance(result.storage_data, Part)]
    files = dict(sorted({(each.storage_data.file, each.storage_data.whole) for each in parts}))
    numbers = {file: number for number, file in enumerate(files)}
    place_of: dict[str, str] = {}
    tensors: dict[str, list[Any]] = {}
    for result in parts:
        name, part = result.index.fqn, result.storage_data
        about = described[name]
        chunk = _chunk(about, result.index)
        if chunk.sizes == about.size:
            place_of[name] = part.file
        entry = tensors.setdefault(name, [CODES[about.properties.dtype], list(about.size), []])
        entry[2].append([numbers[part.file], list(chunk.offsets), list(chunk.sizes), part.crc])
    return {
        "metadata": {"total_size": sum(each.size_in_bytes for each in parts)},
        "weight_map": dict(sorted(place_of.items())),
        KEY: {
            "format": FORMAT,
            "version": VERSION,
            "number": number,
            "files": list(map(list, files.items())),  # [name, bytes] of each file
            # name -> [dtype, sizes, slices]; a slice: [index in "files", offsets, sizes, CRC-32]
            "tensors": dict(sorted(tensors.items())),
            "values": {
                each.index.fqn: each.storage_data
                for each in results
                if not isinstance(each.storage_data, Part)
            },
        },
    }


def _chunk(about: TensorStorageMetadata, index: MetadataIndex) -> ChunkStorageMetadata:
    """Return the chunk with the offset of `index`; try the position in `index` first."""
    hint = index.index
    if hint is not None and hint < len(about.chunks) and about.chunks[hint].offsets == index.offset:
        return about.chunks[hint]
    return next(chunk for chunk in about.chunks if chunk.offsets == index.offset)


class _Files:
    """The files of a checkpoint, whose headers are read on first use."""

    def __init__(
        self, index: AnyPath, section: dict[str, Any], weights: Weights, budget: Budget
    ) -> None:
        self._number = str(section["number"])
        self._files = [
            (weights.files.file(sibling_of(index, str(name))), int(size))
            for name, size in section["files"]
        ]
        self._opened: dict[int, TensorFile] = {}
        self._budget = budget
        self._lock = threading.Lock()  # several threads may read headers

    def __len__(self) -> int:
        return len(self._files)

    def _file(self, number: int) -> TensorFile:
        """Return a file, after a check that it belongs to the same save as the index."""
        with self._lock:
            if number not in self._opened:
                file, size = self._files[number]
                if file.size != size:
                    raise ArchiveError(
                        f"{file.path} has {file.size} bytes; the index expects {size}"
                    )
                opened = TensorFile(file, self._budget)
                opened.check_number(self._number, "checkpoint")
                self._opened[number] = opened
            return self._opened[number]

    def find(
        self, number: int, key: str, dtype: torch.dtype, sizes: tuple[int, ...], crc: int
    ) -> Extent:
        """Return the location of a slice; ArchiveError if its dtype or sizes differ in the file."""
        file = self._file(number)
        extent = extent_in(file, key, crc)
        if difference := difference_of((extent.dtype, file.places[key].shape), (dtype, sizes)):
            raise ArchiveError(f"{file.file.path}: {key!r} differs from the index: {difference}")
        return extent


def add_section(weights: Weights, index: AnyPath, section: Any, budget: Budget) -> None:
    """Add the tensors and values in an index's section to `weights`."""
    try:
        if (section["format"], section["version"]) != (FORMAT, VERSION):
            raise ValueError(
                f"expected format {FORMAT!r}, version {VERSION}, found format"
                f" {section['format']!r}, version {section['version']!r}"
            )
        files = _Files(index, section, weights, budget)
        weights.facts.append([section["number"], section["files"]])
        for name, each in section["tensors"].items():
            weights.tensors[name] = _tensor(name, each, files, budget)
        for name, value in section["values"].items():
            weights.values[name] = from_json(name, value)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ArchiveError) or not is_about_input(error):
            raise
        raise ArchiveError(f"{index} is damaged: {error!r}") from None


def _tensor(name: str, entry: Any, files: _Files, budget: Budget) -> Stored:
    code, shape, parts = entry
    dtype, whole = DTYPES[code], sizes_in(shape)
    budget.charge(_SLICE_BYTES * len(parts), f"the slices of {name!r}")
    slices = []
    for number, begin, lengths, crc in parts:
        offsets, sizes = sizes_in(begin), sizes_in(lengths)
        if type(number) is not int or not 0 <= number < len(files):
            raise ValueError(f"a slice of {name!r} is in file {number!r}, which is not listed")
        key = key_of(name, whole, offsets, sizes)
        find = functools.partial(files.find, number, key, dtype, sizes, int(crc))
        slices.append(Slice(offsets, sizes, find))
    check_slices(name, whole, slices, budget)
    return Stored(dtype, whole, tuple(slices))


def check_slices(name: str, sizes: Sequence[int], slices: Sequence[Slice], budget: Budget) -> None:
    """Raise ValueError unless the slices cover the tensor `name` without overlaps."""
    for each in slices:
        if not len(each.offsets) == len(each.sizes) == len(sizes) or any(
            a + n > whole for a, n, whole in zip(each.offsets, each.sizes, sizes, strict=True)
        ):
            raise ValueError(f"a slice of {name!r} is out of range")
    volume = sum(math.prod(each.sizes) for each in slices)
    if volume != math.prod(sizes) or volume >= 1 << 63:
        whole = math.prod(sizes)
        raise ValueError(
            f"the slices of {name!r} have {volume} elements, expected {whole} (less than 2^63)"
        )
    if len(slices) == 1 or volume == 0:
        return
    # The offsets of slices cut the tensor into a grid. Each cell has to be in exactly one slice.
    # The position of a cell's first element, an int, identifies the cell. Tuples of offsets would
    # make a set slow if a hostile file chose tuples with equal hashes.
    edges = [sorted({0, *(each.offsets[dim] for each in slices)}) for dim in range(len(sizes))]
    strides = strides_of(sizes)
    seen: set[int] = set()
    for each in slices:
        begins = [
            [stride * begin for begin in edge[bisect_left(edge, a) : bisect_left(edge, a + n)]]
            for a, n, edge, stride in zip(each.offsets, each.sizes, edges, strides, strict=True)
        ]
        more = math.prod(map(len, begins)) - 1  # 0 if each slice is one cell of the grid
        budget.charge(_SLICE_BYTES * max(more, 0), f"the slices of {name!r}")
        cells = set(map(sum, itertools.product(*begins)))
        if not seen.isdisjoint(cells):
            raise ValueError(f"slices of {name!r} overlap")
        seen |= cells
