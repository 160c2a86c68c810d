"""Unpack records of zip files in memory, and serve the records of `torch.save` to `torch.load`."""

from __future__ import annotations

from typing import Any

import torch

from fxpress import _native
from fxpress._files.format.package import inflate
from fxpress._files.serde.limits import Budget


def unpack(data: bytes, size: int, place: str, budget: Budget) -> bytes:
    """Return the bytes that were deflated to `data`."""
    budget.charge(2 * size, place)  # zlib holds the parts and the joined result at once
    return inflate(data, size)


class SavedRecords:
    """The records of a zip file that `torch.save` wrote, with the methods that torch.load calls.

    torch's own reader trusts the sizes in a pickle, and unpacks records of any size.
    """

    def __init__(self, saved: bytes, place: str, budget: Budget) -> None:
        self._native = _native.ArchiveReader(saved, 0)
        self._records = self._native.records()
        self._place = place
        self._budget = budget
        self._read: set[str] = set()

    def get_all_records(self) -> list[str]:
        """Return the names of the records."""
        return list(self._records)

    def has_record(self, name: str) -> bool:
        """Return whether the file has a record; False for ".format_version".

        `torch.load` computes the offsets of storages when a file has this record.
        """
        return name in self._records and name != ".format_version"

    def serialization_id(self) -> str:
        """Return the name of the file in a log of torch, which is empty."""
        return ""

    def get_record(self, name: str) -> bytes:
        """Return the bytes of a record."""
        _, _, size, _, is_deflated = self._records[name]
        place = f"{self._place}: record {name!r}"
        if name in self._read:  # another copy of bytes that the size of the file allowed for once
            self._budget.charge(size, place)
        self._read.add(name)
        data: bytes = self._native.stored_bytes(name)
        return unpack(data, size, place, self._budget) if is_deflated else data

    def get_record_offset(self, name: str) -> int:
        """Return the offset of a record's stored bytes in the file; KeyError when there is none."""
        offset: int = self._records[name][0]
        return offset

    def get_storage_from_record(self, name: str, size: int, _kind: Any) -> torch.Tensor:
        """Return the bytes of a record as a tensor of `size` elements of the dtype uint8."""
        _, _, found, _, is_deflated = self._records[name]
        if found != size:
            raise ValueError(f"record {name!r} has {found} bytes, not {size}")
        if is_deflated or name in self._read:
            return _tensor(bytearray(self.get_record(name)))
        self._read.add(name)
        made = torch.empty(size, dtype=torch.uint8, device="cpu")
        self._native.copy_stored(name, size, made.data_ptr())
        return made


def _tensor(data: bytearray) -> torch.Tensor:
    if not data:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(data, dtype=torch.uint8)
