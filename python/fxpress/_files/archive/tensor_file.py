"""Read safetensors files without mapping them.

The library of the format maps files; a mapped file that gets shorter ends the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from fxpress._files.errors import ArchiveError
from fxpress._files.format.dtypes import BY_CODE
from fxpress._files.format.tensor_header import LONGEST, Place, read_header
from fxpress._files.serde.limits import Budget

# An older torch may not have all of the dtypes of the format.
DTYPES = {
    code: getattr(torch, dtype.name)
    for code, dtype in BY_CODE.items()
    if hasattr(torch, dtype.name)
}


class TensorFile:
    """The tensors in a safetensors file. Each read of a tensor gives it memory of its own.

    Args:
        path: the path of the file, which is opened once.
        budget: the budget of the load; None: the budget that the default limits allow.

    Raises:
        LimitError: the header is too large, or nested too deeply.
        OSError: the file cannot be read.
        ArchiveError: the file is damaged.
    """

    def __init__(self, path: Path, budget: Budget | None = None) -> None:
        self._path = path
        self._budget = Budget(None, 0) if budget is None else budget
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self.metadata, self._places = self._read_header()
        except BaseException:
            self._close()
            raise

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *error: object) -> None:
        self._close()

    def __del__(self) -> None:
        if getattr(self, "_file", -1) >= 0:
            self._close()

    def _close(self) -> None:
        descriptor, self._file = self._file, -1
        os.close(descriptor)

    def read(self, name: str) -> torch.Tensor:
        """Return the tensor of that name; KeyError when there is none."""
        place = self._places[name]
        data, dtype = self._bytes(place.begin, place.size), getattr(torch, place.dtype)
        if not data:  # frombuffer() takes no empty buffers
            return torch.empty(place.shape, dtype=dtype)
        return torch.frombuffer(data, dtype=dtype).reshape(place.shape)

    def _bytes(self, begin: int, size: int) -> bytearray:
        data = bytearray(size)
        with memoryview(data) as view:
            done = 0
            while done < size:
                got = os.preadv(self._file, [view[done:]], begin + done)
                if got == 0:
                    raise self._damaged("it ends too early")
                done += got
        return data

    def _damaged(self, why: str) -> ArchiveError:
        return ArchiveError(f"{self._path} is damaged: {why}")

    def _read_header(self) -> tuple[dict[str, Any], dict[str, Place]]:
        whole = os.fstat(self._file).st_size
        return read_header_of(
            lambda begin, size: bytes(self._bytes(begin, size)),
            whole,
            str(self._path),
            self._budget,
        )


def read_header_of(
    read: Callable[[int, int], bytes], whole: int, path: str, budget: Budget
) -> tuple[dict[str, Any], dict[str, Place]]:
    """Return the metadata and the places of the tensors of a safetensors file.

    Args:
        read: returns bytes of the file: from a position on, so many.
        whole: the bytes of the file.
        path: its name in messages.
        budget: the budget of the load, which grows by the size of the file.

    Raises:
        LimitError: the header is too large, or nested too deeply.
        ArchiveError: the file is damaged, or has a dtype that this torch does not have.
    """

    def damaged(why: str) -> ArchiveError:
        return ArchiveError(f"{path} is damaged: {why}")

    length = int.from_bytes(read(0, 8), "little") if whole >= 8 else 0
    if length > min(LONGEST, whole - 8):
        raise damaged("its header is too long" if whole >= 8 else "it ends too early")
    budget.grow(whole)
    text = read(8, length)
    budget.check_json(text, path)
    try:
        metadata, places = read_header(text, whole)
    except ValueError as e:
        raise damaged(str(e)) from None
    for name, place in places.items():
        if not hasattr(torch, place.dtype):
            raise damaged(f"this torch has no {place.dtype}, the type of {name!r}")
    return metadata, places
