"""Open a zip file and read its records, without torch."""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._files.format.limit_values import DEFAULT
from fxpress._files.format.recognition import HEAD, format_of_bytes, open_file

# Unpacked records and objects may use this many bytes for each byte of the file, in addition to
# `DEFAULT.memory`. The bytes of the file itself are not counted.
_MEMORY_PER_BYTE = 8
_THREADS = 2  # threads that compute checksums
# If `_WIDE` matches a text, its str uses 4 bytes per character. If `_DOUBLE` matches, it uses 2.
_WIDE = re.compile(rb"[\xf0-\xff]|\\u[dD][89abAB]")
_DOUBLE = re.compile(rb"[\xc4-\xef]|\\u(?!00)")
_DAMAGE = (_native.ArchiveError, UnicodeDecodeError, ValueError)


class Record(NamedTuple):
    """The entry of a record in the zip directory."""

    offset: int  # offset of the data in the archive, in bytes
    stored: int  # bytes in the archive
    size: int  # bytes when unpacked
    crc: int  # CRC-32 of the unpacked bytes
    is_deflated: bool


class DamagedRecordError(ValueError):
    """A record cannot be unpacked."""


def inflate(data: bytes, size: int) -> bytes:
    """Unpack raw deflated `data` to `size` bytes; DamagedRecordError if `data` is damaged."""
    try:
        unpacked = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as e:
        raise DamagedRecordError(str(e)) from None
    if len(unpacked) != size:
        raise DamagedRecordError(f"it does not unpack to {size} bytes")
    return unpacked


def character_bytes(text: bytes, has_escapes: bool = False) -> int:
    """Return the bytes per character (1, 2 or 4) of the str that is decoded from `text`."""
    if not has_escapes and text.isascii():
        return 1
    return 4 if _WIDE.search(text) else 2 if _DOUBLE.search(text) else 1


WRONG_CHECKSUM = "its checksum is wrong"


class InspectionError(Error):
    """A file cannot be inspected, because it is damaged or has an unknown format."""


def memory_for(size: int) -> int:
    """Return how many bytes of memory the inspection of a file of `size` bytes may use."""
    return DEFAULT.memory + _MEMORY_PER_BYTE * size


class Allowance:
    """The memory for the inspection of a file of `size` bytes; `memory_left` bytes are unused."""

    def __init__(self, size: int) -> None:
        self.memory_left = memory_for(size)

    def charge(self, size: int, record: str) -> None:
        """Charge the memory of a record; InspectionError if too little memory is left."""
        if size > self.memory_left:
            raise InspectionError(
                f"record {record!r} needs too much memory for a file of this size; "
                "fxpress.load accepts larger limits"
            )
        self.memory_left -= size

    @contextmanager
    def release_charges(self) -> Iterator[None]:
        """Run the block, then release the memory that it has charged."""
        left = self.memory_left
        try:
            yield
        finally:
            self.memory_left = left


class Package(Allowance):
    """A zip file opened for reading; OSError or InspectionError if it cannot be opened.

    `bytes` is the size of the file. `records` maps each record's name to its zip directory entry.
    If all records are in one folder of the zip file, the names omit this folder.
    """

    def __init__(self, path: str | bytes | os.PathLike[str]) -> None:
        self._file = open_file(path)
        try:
            self.bytes = os.fstat(self._file).st_size
            self._reader = _native.ArchiveReader(self._file)
            entries = self._reader.records()
        except _DAMAGE as e:
            other = format_of_bytes(os.pread(self._file, HEAD, 0))
            os.close(self._file)
            raise InspectionError(str(e) if other is None else other.text()) from None
        except BaseException:
            os.close(self._file)
            raise
        self.records = {name: Record(*entry) for name, entry in entries.items()}
        super().__init__(self.bytes)

    def __enter__(self) -> Package:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)

    def read(self, name: str) -> bytes:
        """Return the bytes of a record, or raise InspectionError if it is missing or damaged."""
        record = self.records.get(name)
        if record is None:
            raise InspectionError(f"record {name!r} is missing")
        try:
            data = self._reader.stored_bytes(name)
            if record.is_deflated:
                self.charge(record.size, name)
                data = inflate(data, record.size)
        except _DAMAGE as e:
            raise InspectionError(f"record {name!r} is damaged: {e}") from None
        if _native.crc32(data) != record.crc:
            raise InspectionError(f"record {name!r} is damaged: {WRONG_CHECKSUM}")
        return data

    def read_text(self, name: str) -> str:
        """Return a record as text; raises the errors of `read`, and UnicodeDecodeError."""
        data = self.read(name)
        self.charge(character_bytes(data) * len(data), name)
        return data.decode()

    def damaged_records(self, report: Callable[[int], None] | None = None) -> dict[str, str]:
        """Read all records; return name -> damage. `report` gets the count of newly read bytes."""
        damaged = {}
        for name, record in self.records.items():
            try:
                if record.is_deflated:
                    with self.release_charges():
                        self.read(name)
                    continue
                (crc,) = self._reader.read_into([(name, 0, record.size, 0)], True, _THREADS, report)
                if crc != record.crc:
                    damaged[name] = WRONG_CHECKSUM
            except InspectionError as e:
                damaged[name] = str(e).removeprefix(f"record {name!r} is damaged: ")
            except _DAMAGE as e:
                damaged[name] = str(e)
        return damaged
