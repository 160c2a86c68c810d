"""Reading an archive, record by record."""

from __future__ import annotations

import logging
import mmap
import os
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple

from fxpress import _native
from fxpress._archive import names
from fxpress._archive.errors import ArchiveError, archive_errors
from fxpress._archive.files import is_path

log = logging.getLogger("fxpress")

_MAX_THREADS = 8
# A compressed record may be so large, and so many times as large as what is stored of it.
_MAX_UNPACKED = 1 << 26  # bytes
_MAX_RATIO = 200


class Record(NamedTuple):
    """What the directory says of a record."""

    offset: int  # of its data in the archive, bytes
    stored: int  # bytes there
    size: int  # bytes when they are unpacked
    crc: int  # CRC-32 of the unpacked bytes
    is_deflated: bool


class PT2ArchiveReader:
    """Reads an archive.

    Names of records are without the folder that they are in. Checksums are checked, unless
    `check_crc` is false.

    Args:
        archive_path_or_buffer: a path; bytes or another object with a buffer; or an open file,
            which is read from its position on.

    Raises:
        OSError: the file cannot be read.
        fxpress.archive.ArchiveError: it is damaged, or no archive.

    Stands in for `torch.export.pt2_archive.PT2ArchiveReader`.
    """

    def __init__(self, archive_path_or_buffer: Any, *, check_crc: bool = True) -> None:
        self._open(archive_path_or_buffer, check_crc)
        try:
            self.check_format()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_any_format(cls, f: Any, *, check_crc: bool = True) -> PT2ArchiveReader:
        """The same for zip files that are no pt2 archives."""
        reader = cls.__new__(cls)
        reader._open(f, check_crc)
        return reader

    def _open(self, f: Any, check_crc: bool) -> None:
        self._check_crc = check_crc
        self._file: int | None = None  # a descriptor of ours
        self._native: Any = None
        self.start = 0  # where in the file the archive begins, bytes
        if is_path(f):
            self._file = os.open(os.fspath(f), os.O_RDONLY | os.O_CLOEXEC)
            source: Any = self._file
        else:
            source, self.start = _source_of(f)
        self.source = source
        try:
            with archive_errors():
                self._native = _native.ArchiveReader(source, self.start)
                self._records = self._native.records()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PT2ArchiveReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the file, if it was opened here."""
        self._native = None  # lets go of the buffer
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()

    def get_file_names(self) -> list[str]:
        """The names of all records, in the order of the directory."""
        return list(self._records)

    def check_format(self) -> None:
        """AssertionError for archives of another format than pt2."""
        if self.read_string(names.ARCHIVE_FORMAT_PATH) != names.ARCHIVE_FORMAT_VALUE:
            raise AssertionError("Invalid archive format")

    def find(self, name: str) -> Record | None:
        """What the directory says of a record; None when there is none."""
        found = self._records.get(name)
        return None if found is None else Record(*found)

    def record(self, name: str) -> Record:
        """The same; ArchiveError when there is none."""
        found = self.find(name)
        if found is None:
            raise ArchiveError(f"record {name!r} is missing")
        return found

    def read_bytes(self, name: str) -> bytes:
        """The bytes of a record; ArchiveError when there is none, or it is damaged."""
        record = self.record(name)
        with archive_errors():
            data: bytes = self._native.stored_bytes(name)
        if record.is_deflated:
            data = _unpack(name, record, data)
        if self._check_crc and _native.crc32(data) != record.crc:
            raise ArchiveError(f"record {name!r} is damaged: its checksum is wrong")
        return data

    def read_string(self, name: str) -> str:
        """The same as text."""
        try:
            return self.read_bytes(name).decode()
        except UnicodeDecodeError as e:
            raise ArchiveError(f"record {name!r} is damaged: it is not UTF-8: {e}") from None

    def read_into(self, targets: Sequence[tuple[str, int, int]], report: Any = None) -> None:
        """Fills memory with records, on several threads.

        Args:
            targets: (name, address, bytes); address 0: the record is only checked.
            report: called with the bytes done since the last call.
        """
        threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
        with archive_errors():
            damaged = self._native.read_into(list(targets), self._check_crc, threads, report)
        if damaged:
            raise ArchiveError(f"record {damaged[0]!r} is damaged: its checksum is wrong")

    def archive_version(self) -> int:
        """The version of the format; 0 when the archive does not say."""
        try:
            return int(self.read_string(names.ARCHIVE_VERSION_PATH))
        except ArchiveError:
            return 0


def _source_of(f: Any) -> tuple[Any, int]:
    """What the native reader takes for an open file or a buffer, and where the archive begins."""
    try:
        return memoryview(f).cast("B"), 0
    except TypeError:
        pass
    if isinstance(f, mmap.mmap):
        return f, f.tell()
    getbuffer = getattr(f, "getbuffer", None)
    if getbuffer is not None:
        return getbuffer()[f.tell() :], 0
    try:
        return f.fileno(), f.tell()
    except (AttributeError, OSError):
        return f.read(), 0


def _unpack(name: str, record: Record, data: bytes) -> bytes:
    if record.size > max(_MAX_UNPACKED, _MAX_RATIO * record.stored):
        raise ArchiveError(
            f"record {name!r} is refused: {record.stored} bytes would become {record.size}"
        )
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        unpacked = unpacker.decompress(data, record.size + 1)
    except zlib.error as e:
        raise ArchiveError(f"record {name!r} is damaged: {e}") from None
    if len(unpacked) != record.size:
        raise ArchiveError(f"record {name!r} is damaged: its size is wrong")
    return unpacked


def is_pt2_package(serialized_model: bytes | str) -> bool:
    """Whether bytes, or the file at a path, are a pt2 archive.

    Stands in for `torch.export.pt2_archive.is_pt2_package`.
    """
    try:
        with PT2ArchiveReader.of_any_format(serialized_model) as reader:
            return reader.read_bytes(names.ARCHIVE_FORMAT_PATH) == b"pt2"
    except Exception:
        log.info("Model is not a PT2 package")
        return False
