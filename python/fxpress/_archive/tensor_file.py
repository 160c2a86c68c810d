"""Read safetensors files without mapping them.

The library of the format maps files; a mapped file that gets shorter ends the process.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fxpress._archive.errors import ArchiveError
from fxpress._serde.limits import Budget

_LONGEST_HEADER = 100_000_000  # bytes, by the format
METADATA = "__metadata__"
# The dtype names of the format. An older torch may not have all of the dtypes.
_NAMES = {
    **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"},
    **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8"},
    **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool"},
    **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu"},
    **{"F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz"},
    "C64": "complex64",
}
DTYPES = {name: getattr(torch, dtype) for name, dtype in _NAMES.items() if hasattr(torch, dtype)}


class _Place(NamedTuple):
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int  # in the file, bytes
    size: int  # bytes


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
        data = self._bytes(place.begin, place.size)
        if not data:  # frombuffer() takes no empty buffers
            return torch.empty(place.shape, dtype=place.dtype)
        return torch.frombuffer(data, dtype=place.dtype).reshape(place.shape)

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

    def _read_header(self) -> tuple[dict[str, Any], dict[str, _Place]]:
        whole = os.fstat(self._file).st_size
        length = int.from_bytes(self._bytes(0, 8), "little")
        if length > min(_LONGEST_HEADER, whole - 8):
            raise self._damaged("its header is too long")
        self._budget.grow(whole)
        text = bytes(self._bytes(8, length))
        self._budget.check_json(text, str(self._path))
        try:
            header = json.loads(text)
            metadata = header.pop(METADATA, {})
            places = {name: self._place(entry, 8 + length) for name, entry in header.items()}
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            raise self._damaged(f"its header is wrong: {e!r}") from None
        if not isinstance(metadata, dict):
            raise self._damaged("its metadata are none")
        end = 8 + length
        for place in sorted(places.values(), key=lambda place: (place.begin, place.size)):
            if place.begin != end:
                raise self._damaged("its tensors overlap, or leave a gap")
            end += place.size
        if end != whole:
            raise self._damaged(f"it has {whole} bytes instead of {end}")
        return metadata, places

    @staticmethod
    def _place(entry: Any, base: int) -> _Place:
        dtype: torch.dtype = DTYPES[entry["dtype"]]
        shape = tuple(int(n) for n in entry["shape"])
        begin, end = (int(n) for n in entry["data_offsets"])
        if min((*shape, begin)) < 0 or end - begin != math.prod(shape) * dtype.itemsize:
            raise ValueError(f"{shape} of {dtype} at {begin} to {end}")
        return _Place(dtype, shape, base + begin, end - begin)
