"""Where the elements are that `torch.save` wrote for a tensor, so that ranges of them are read."""

from __future__ import annotations

import io
import pickle
import sys
from typing import Any, NamedTuple

import torch

from fxpress import _native
from fxpress._distributed.checkpoint.boxes import Extent
from fxpress._distributed.checkpoint.weights import is_dense
from fxpress._files.format.record import Record
from fxpress._files.remote.ranges import Checked, File
from fxpress._torch.checkpoint import STORAGES, TENSORS

_LONGEST = 1 << 16  # bytes of the pickle of a tensor
_BYTE_ORDER = sys.byteorder.encode()


class _Part(NamedTuple):
    """A part of a file, as the native reader of archives reads it."""

    file: File
    begin: int
    size: int

    def read(self, begin: int, end: int) -> bytes:
        return self.file.read(self.begin + begin, self.begin + end)


class _Tensor:
    """What the pickle of a tensor says."""

    def __init__(self, storage: Any, offset: int, sizes: Any, strides: Any, *others: Any) -> None:
        self.storage, self.offset = storage, offset
        self.sizes, self.strides, self.others = tuple(sizes), tuple(strides), others


class _Unpickler(pickle.Unpickler):
    """Makes a `_Tensor` of the pickle of a tensor, and refuses everything else."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data))
        # A pickle can change the attributes of a class that it names.
        self._class = type("_Tensor", (_Tensor,), {})

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in TENSORS:
            return self._class
        if module == "torch" and name in STORAGES:
            return getattr(torch, STORAGES[name])
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return None
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) == ("collections", "OrderedDict"):
            return lambda *_: ()
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: Any) -> Any:
        return pid


def extent_of(
    file: File, begin: int, size: int, dtype: torch.dtype, sizes: tuple[int, ...]
) -> Extent | None:
    """Return where the elements of a tensor are; None where that needs a closer look.

    `torch.save` wrote `size` bytes for it, from `begin` on.
    """
    try:
        archive = _native.ArchiveReader(_Part(file, begin, size))
        records = {name: Record(*entry) for name, entry in archive.records().items()}
        if "byteorder" in records and archive.stored_bytes("byteorder") != _BYTE_ORDER:
            return None
        pickled = _pickled(archive, records["data.pkl"])
        said = _Unpickler(pickled).load()
        _, of_storage, key, _, _ = said.storage
        name = f"data/{key}"
        record, start = records[name], begin + archive.offset(name)
    except Exception:  # whatever a damaged file makes them raise: a closer look says it
        return None
    is_same = (of_storage or said.others[-1]) is dtype and said.sizes == sizes
    numbers = (said.offset, *said.strides)
    if not is_same or any(type(each) is not int for each in numbers):
        return None
    needed = _native.bytes_needed(sizes, said.strides, said.offset, dtype.itemsize)
    if needed is None or record.is_deflated or needed > record.size:
        return None
    is_whole = said.offset == 0 and needed == record.size and is_dense(sizes, said.strides)
    part = Checked(file, start, record.size, record.crc, f"record {name!r}")
    place = start + said.offset * dtype.itemsize
    return Extent(file, place, dtype, said.strides, part, is_whole)


def _pickled(archive: _native.ArchiveReader, record: Record) -> bytes:
    """Return the pickle of a tensor; ValueError for one that is damaged or no small record."""
    if record.is_deflated or record.size > _LONGEST:
        raise ValueError("it is not the pickle of a tensor alone")
    data = archive.stored_bytes("data.pkl")
    if _native.crc32(data) != record.crc:
        raise ValueError("its checksum is wrong")
    return data
