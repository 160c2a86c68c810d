"""Read and write safetensors files.

The library `safetensors` maps files into memory. If another process truncates a mapped file, an
access to it ends this process, so this module reads the bytes instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from fxpress import _native
from fxpress._base.errors import Error, UnsupportedError
from fxpress._files.archive import tensors
from fxpress._files.archive.files import write_all
from fxpress._files.errors import ArchiveError
from fxpress._files.format.recognition import HEAD, SAFETENSORS, format_of_bytes
from fxpress._files.format.tensor_header import METADATA, NUMBER, Place, header_length, read_header
from fxpress._files.format.torch_facts import BY_CODE
from fxpress._files.remote.ranges import File, Files
from fxpress._files.serde.artifacts import check_values
from fxpress._files.serde.limits import Budget

# Dtypes by their names in safetensors files; an older torch lacks some of the dtypes.
DTYPES = {
    code: getattr(torch, dtype.name)
    for code, dtype in BY_CODE.items()
    if hasattr(torch, dtype.name)
}
CODES = {dtype: name for name, dtype in DTYPES.items()}
_ALIGNMENT = 8  # bytes
_ONE_CALL = 1 << 22  # bytes of one write; Python handles signals between two writes


class TensorFile:
    """A reader of the tensors in a safetensors file. The caller closes the file.

    The constructor raises LimitError, OSError or ArchiveError. `places` maps names of tensors to
    locations in the file; `metadata` is the dict of texts in the header.
    """

    def __init__(self, file: File, budget: Budget) -> None:
        self.file = file
        begin = file.read(0, min(8, file.size))
        try:
            length = header_length(begin, file.size)
        except ValueError as e:
            raise self._damaged(str(e)) from None
        budget.grow(file.size)
        text = file.read(8, 8 + length)
        budget.check_json(text, str(file.path))
        try:
            self.metadata, self.places = read_header(text, file.size)
        except ValueError as e:
            raise self._damaged(str(e)) from None

    def _damaged(self, why: str) -> ArchiveError:
        other = format_of_bytes(self.file.read(0, min(HEAD, self.file.size)))
        if other is not None and other != SAFETENSORS:
            return ArchiveError(f"{self.file.path}: {other.text('a safetensors file')}")
        return ArchiveError(f"{self.file.path} is damaged: {why}")

    @property
    def number(self) -> str | None:
        """The random number that identifies the save that wrote the file; None if there is none."""
        number = self.metadata.get(NUMBER)
        return number if isinstance(number, str) else None

    def check_number(self, number: str, kind: str) -> None:
        """Raise ArchiveError unless the save `number` wrote the file; the text contains `kind`."""
        if self.number != number:
            raise ArchiveError(
                f"{self.file.path} belongs to another {kind}, or to another save of this {kind}"
            )

    def place(self, name: str) -> Place:
        """Return the location of a tensor; ArchiveError if the file does not contain the tensor."""
        if name not in self.places:
            raise ArchiveError(f"{self.file.path} does not contain a tensor {name!r}")
        return self.places[name]

    def dtype(self, name: str) -> torch.dtype:
        """Return the dtype of a tensor; UnsupportedError if this torch lacks the dtype."""
        dtype = getattr(torch, self.places[name].dtype, None)
        if dtype is None:
            raise UnsupportedError(
                f"{self.file.path}: {name!r} is of the dtype {self.places[name].dtype}, which "
                "this torch does not have: only the other tensors can be read"
            )
        return dtype

    def read(self, name: str) -> torch.Tensor:
        """Return the tensor of that name; raises the errors of `dtype`."""
        place, dtype = self.places[name], self.dtype(name)
        if not place.size:  # frombuffer() rejects empty buffers
            return torch.empty(place.shape, dtype=dtype)
        data = bytearray(place.size)
        with memoryview(data) as view:
            self.file.read_into(place.begin, view)
        return torch.frombuffer(data, dtype=dtype).reshape(place.shape)


def write_tensors(
    descriptor: int,
    state_dict: Mapping[str, torch.Tensor],
    number: str,
    report: Callable[[int], None] | None = None,
) -> None:
    """Write tensors to a file; elements that tensors share are written for each tensor."""
    described = {
        name: (_dtype_of(name, tensor), tuple(tensor.shape)) for name, tensor in state_dict.items()
    }
    header, order = layout(described, {"format": "pt", NUMBER: number})
    write_all(descriptor, memoryview(header))
    for name in order:
        for part in _parts_of(tensors.elements_of(name, state_dict[name])):
            write_all(descriptor, part)
            if report is not None:
                report(len(part))


def layout(
    described: Mapping[str, tuple[torch.dtype, tuple[int, ...]]], metadata: Mapping[str, str]
) -> tuple[bytes, list[str]]:
    """Return a file's first bytes (length and header), and the tensors' names in file order."""
    entries: dict[str, Any] = {METADATA: dict(metadata)}
    # Tensors with larger elements come first, so that the start of each tensor is aligned.
    order = sorted(described, key=lambda name: (-described[name][0].itemsize, name))
    position = 0
    for name in order:
        dtype, sizes = described[name]
        end = position + math.prod(sizes) * dtype.itemsize
        entries[name] = {
            "dtype": CODES[dtype],
            "shape": list(sizes),
            "data_offsets": [position, end],
        }
        position = end
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _ALIGNMENT)
    return len(header).to_bytes(8, "little") + header, order


def _dtype_of(name: str, tensor: torch.Tensor) -> torch.dtype:
    check_values({name: tensor})
    if tensor.dtype not in CODES or tensor.layout is not torch.strided or tensor.is_meta:
        what = f"{tensor.dtype}, {tensor.layout}, on {tensor.device}"
        raise UnsupportedError(
            f'{name!r} cannot be in a safetensors file ({what}): save with weights="inline"'
        )
    return tensor.dtype


def write_with_checksum(descriptor: int, plain: torch.Tensor) -> int:
    """Write a contiguous tensor; return the checksum of the written bytes."""
    crc = 0
    for part in _parts_of(plain):
        copied = memoryview(bytearray(part))  # another thread may modify the tensor
        crc = _native.crc32_of_both(crc, _native.crc32(copied), len(copied))
        write_all(descriptor, copied)
    return crc


def memory_of(tensor: torch.Tensor) -> memoryview:
    """Return a view of a contiguous CPU tensor's memory; the tensor has to outlive the view."""
    size = tensor.numel() * tensor.itemsize
    if size == 0:
        return memoryview(b"")
    return memoryview((ctypes.c_char * size).from_address(tensor.data_ptr())).cast("B")


def _parts_of(plain: torch.Tensor) -> Iterator[memoryview]:
    data = memory_of(plain)
    for start in range(0, len(data), _ONE_CALL):
        yield data[start : start + _ONE_CALL]


def number_of(path: Path) -> str | None:
    """Return the number of the save that wrote a file, or None; OSError if a file is unreadable."""
    if path.is_symlink() or not path.is_file():  # saves create no links, and opening a pipe blocks
        return None
    try:
        with contextlib.closing(Files()) as files:
            return TensorFile(files.file(path), Budget(None, 0)).number
    except Error:
        return None
