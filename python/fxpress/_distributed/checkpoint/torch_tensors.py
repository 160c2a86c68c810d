"""Where the elements are that `torch.save` wrote for a tensor, so that ranges of them are read."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile
from typing import Any

import torch

from fxpress import _native
from fxpress._distributed.checkpoint.boxes import Extent
from fxpress._distributed.checkpoint.weights import is_dense
from fxpress._files.remote.ranges import Checked, File
from fxpress._torch.checkpoint import STORAGES, TENSORS

_LOCAL_HEADER = 30  # bytes, without the name and the extra field
_LONGEST = 1 << 16  # bytes of the pickle of a tensor


class _View(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: File, begin: int, size: int) -> None:
        self._file, self._begin, self._size, self._at = file, begin, size, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise OSError("before the begin")
        self._at = base + offset
        return self._at

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        view = view[: max(0, min(len(view), self._size - self._at))]
        self._file.read_into(self._begin + self._at, view)
        self._at += len(view)
        return len(view)


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
        with zipfile.ZipFile(io.BufferedReader(_View(file, begin, size))) as archive:
            members = {each.filename.partition("/")[2]: each for each in archive.infolist()}
            if members["data.pkl"].file_size > _LONGEST:
                return None
            if "byteorder" in members and archive.read(members["byteorder"]) != _BYTE_ORDER:
                return None
            said = _Unpickler(archive.read(members["data.pkl"])).load()
            _, of_storage, key, _, _ = said.storage
            member = members[f"data/{key}"]
    except Exception:  # whatever a damaged file makes them raise: a closer look says it
        return None
    is_same = (of_storage or said.others[-1]) is dtype and said.sizes == sizes
    numbers = (said.offset, *said.strides)
    if not is_same or any(type(each) is not int for each in numbers):
        return None
    needed = _native.bytes_needed(sizes, said.strides, said.offset, dtype.itemsize)
    if needed is None or member.compress_type != zipfile.ZIP_STORED:
        return None
    at = begin + member.header_offset
    header = file.read(at, at + _LOCAL_HEADER)
    names = int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")
    start = at + _LOCAL_HEADER + names
    if needed > member.file_size or start + member.file_size > begin + size:
        return None
    is_whole = said.offset == 0 and needed == member.file_size and is_dense(sizes, said.strides)
    part = Checked(file, start, member.file_size, member.CRC, f"record {member.filename!r}")
    place = start + said.offset * dtype.itemsize
    return Extent(file, place, dtype, said.strides, part, is_whole)


_BYTE_ORDER = sys.byteorder.encode()
