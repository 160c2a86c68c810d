"""Read programs from an archive at a URL by requests for ranges of bytes."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fxpress._files.archive.reader import PT2ArchiveReader, Target
from fxpress._files.errors import ArchiveError, archive_errors
from fxpress._files.format import names
from fxpress._files.format.recognition import HEAD
from fxpress._files.remote.remote_file import PIECE, RemoteFile
from fxpress._files.serde.limits import Budget, Limits

_GAP = 1 << 14  # records that are at most this many bytes apart are read by one request
_RECORD_BYTES = 8  # estimated bytes of Python objects for each byte of the zip directory
_Run = tuple[int, int]  # (begin, end) in the file, of adjacent records and their headers


class RemoteArchive(PT2ArchiveReader):
    """An archive at a URL. Each record that is read is compared with its checksum."""

    _most_threads = 1  # threads would compete for the one piece that `_Ranges` caches

    def __init__(self, file: RemoteFile, limits: Limits | Budget | None = None) -> None:
        self._set_up(check_crc=True)
        self.file, self._limits = file, limits
        self.budget = Budget.of(limits, 0)
        self._lock = threading.Lock()
        self._ranges = _Ranges(file)
        try:
            self._ranges.budget = self.budget
            self._read_directory(self._ranges)
            self._ranges.budget = None
        except ArchiveError as error:
            why = str(error)
            if not why.startswith("the file is not a zip archive"):
                why = f"the file is not a zip archive, or is damaged: {why}"
            raise ArchiveError(f"{file.path}: {why}") from None

    def __exit__(self, *error: object) -> None:
        self._ranges.release()

    def _head(self) -> bytes:
        return self.file.read(0, min(HEAD, self.file.size))

    def mapped(self) -> None:
        """Return None, because the file is not on this machine."""

    def begin_of(self, name: str) -> int:
        """Return the offset of a record's data, which follows the record's local header."""
        self.record(name)
        with archive_errors():
            return int(self._reader.offset(name))

    @contextlib.contextmanager
    def loading(self, model: str) -> Iterator[None]:
        """Cache a program's small records in the block; ChangedFileError if the file changes."""
        self.budget = Budget.of(self._limits, 0)
        small = (names.model_record, names.sample_inputs_record)
        configs = (names.weights_config_record, names.constants_config_record)
        try:
            self._fetch([name_of(model) for name_of in (*small, *configs)])
            yield
        except ArchiveError:
            self.file.check()
            raise
        else:
            self.file.check()
        finally:
            self._ranges.release()

    def read_bytes(self, name: str) -> bytes:
        """Return the bytes of a record, which are cached until the block of `loading` ends."""
        self._fetch([name])
        return super().read_bytes(name)

    def read_into(self, targets: Sequence[Target], report: Any = None) -> None:
        """Fill memory with ranges of records, which are read in their order in the file."""
        ordered = sorted(targets, key=lambda each: (self._reader.extent(each.name), each.start))
        with self._lock:
            self._ranges.planned = self._runs(each.name for each in ordered)
            try:
                super().read_into(ordered, report)
            finally:
                self._ranges.planned = []
            self.budget.grow(sum(each.size for each in ordered))

    def _fetch(self, records: Iterable[str]) -> None:
        """Fetch and cache the records that exist; send one request for adjacent records."""
        with self._lock:
            for begin, end in self._runs(filter(self.find, records)):
                if not self._ranges.has(begin, end):
                    self.budget.charge(end - begin, f"records of {self.file.path}")
                    self._ranges.hold(begin, end)
                    self.budget.grow(end - begin)

    def _runs(self, records: Iterable[str]) -> list[_Run]:
        """Return the ranges of records with their headers; neighboring ranges are merged."""
        runs: list[_Run] = []
        for begin, end in sorted(self._reader.extent(name) for name in set(records)):
            if runs and begin - runs[-1][1] <= _GAP:
                runs[-1] = runs[-1][0], end
            else:
                runs.append((begin, end))
        return runs


class _Ranges:
    """The file that the native reader reads; `read` returns cached bytes, or sends a request."""

    def __init__(self, file: RemoteFile) -> None:
        self._file, self.size = file, file.size
        self.planned: list[_Run] = []  # ranges that will be read from begin to end, in pieces
        self._held: list[tuple[int, memoryview]] = []  # offset and bytes of each cached range
        self._piece = (0, memoryview(b""))  # offset and bytes of the last piece that was read
        # Only set while the zip directory is read. Each read is charged to this budget, except the
        # read of a short tail of the file.
        self.budget: Budget | None = None

    def _charge(self, size: int) -> None:
        if self.budget is not None:
            what = f"the directory of {self._file.path}"
            self.budget.charge(size, what)
            self.budget.grow(size)
            self.budget.charge(size * _RECORD_BYTES, what)

    def hold(self, begin: int, end: int) -> None:
        """Read the bytes from `begin` to `end`, and cache them."""
        data = b"".join(self._file.pieces(begin, end))
        self._held.append((begin, memoryview(data)))

    def has(self, begin: int, end: int) -> bool:
        """Return whether the bytes from `begin` to `end` are cached."""
        return any(at <= begin and end <= at + len(data) for at, data in self._held)

    def release(self) -> None:
        """Drop all cached bytes."""
        self._held, self._piece = [], (0, memoryview(b""))

    def read(self, begin: int, end: int) -> bytes | memoryview:
        """Return the bytes from `begin` to `end`; any thread may call this method."""
        parts = []
        while begin < end:
            part = self._part(begin, end)
            parts.append(part)
            begin += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _part(self, begin: int, end: int) -> bytes | memoryview:
        """Return bytes from `begin` on: at least one byte, at most up to `end`."""
        for at, data in (*self._held, self._piece):
            if at <= begin < at + len(data):
                return data[begin - at : end - at]
        until = next((stop for start, stop in self.planned if start <= begin < stop), None)
        if until is None:
            if end < self.size:
                self._charge(end - begin)
            return self._file.read(begin, end)
        data = memoryview(self._file.read(begin, min(begin + PIECE, until)))
        self._piece = begin, data
        return data[: end - begin]
