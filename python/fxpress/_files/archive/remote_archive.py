"""Read a program from an archive by its URL: the directory, and the ranges of its records."""

from __future__ import annotations

import contextlib
import io
import struct
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from typing import IO, Any, NamedTuple

from fxpress import _native
from fxpress._files.archive import names
from fxpress._files.archive.contents import read_config, records_of
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.writer import PT2ArchiveWriter
from fxpress._files.errors import ArchiveError
from fxpress._files.format.record import Record
from fxpress._files.remote.remote_file import RemoteFile
from fxpress._files.serde.limits import Budget, Limits

_TAIL = 1 << 16  # bytes at the end, which most directories fit in
_GAP = 1 << 14  # bytes between records that are read rather than a request made
_RECORD_BYTES = 8  # of objects for a byte of a directory, as an estimate
_HEADER = struct.Struct("<4s22xHH")  # in front of a record's data: the sizes of name and extra
_SIGNATURE = b"PK\3\4"
_ZEROS = bytes(1 << 20)


class _Place(NamedTuple):
    """Where a record is in the file, with its header."""

    begin: int
    end: int  # where the next record, or the directory, begins
    record: Record


class RemoteArchive:
    """An archive at a URL. What is read of it is compared with the directory at its end.

    Args:
        file: the archive.
        limits: the limits on the cost of reading it.

    Attributes:
        file: the archive.
        budget: what is left of the limits.

    Raises:
        OSError: it cannot be reached.
        fxpress.ArchiveError: it is damaged, or no archive.
        fxpress.LimitError: its directory is larger than the limits allow.
    """

    def __init__(self, file: RemoteFile, limits: Limits | None = None) -> None:
        self.file, self._limits = file, limits
        self.budget = Budget(limits, 0)
        self._places: dict[str, _Place] = self._read_directory()
        self._held: dict[str, bytes] = {}  # of records that were read

    def __enter__(self) -> RemoteArchive:
        return self

    def __exit__(self, *error: object) -> None:
        self._held.clear()

    def _read_directory(self) -> dict[str, _Place]:
        end = _End(self.file, self.budget)
        try:
            with zipfile.ZipFile(end) as directory:
                entries = [each for each in directory.infolist() if not each.is_dir()]
                until = directory.start_dir
        except (zipfile.BadZipFile, NotImplementedError, struct.error, ValueError) as error:
            if isinstance(error, ArchiveError):
                raise
            raise self._damaged(f"it is no zip archive, or a damaged one: {error}") from None
        begins = sorted(each.header_offset for each in entries)
        ends = dict(zip(begins, [*begins[1:], until], strict=True))
        root = _root_of([each.filename for each in entries])
        found: dict[str, _Place] = {}
        for each in entries:
            name, begin = each.filename.removeprefix(root), each.header_offset
            is_plain = each.compress_type == zipfile.ZIP_STORED and not each.flag_bits & 1
            if not is_plain or each.compress_size != each.file_size:
                raise self._damaged(f"record {name!r} is compressed or encrypted")
            if name in found or ends[begin] - begin < _HEADER.size + each.file_size:
                raise self._damaged(f"record {name!r} is not inside of it, or there twice")
            record = Record(0, each.file_size, each.file_size, each.CRC, False)
            found[name] = _Place(begin, ends[begin], record)
        return found

    def _damaged(self, why: str) -> ArchiveError:
        return ArchiveError(f"{self.file.path}: {why}")

    def get_file_names(self) -> list[str]:
        """Return the names of all records, in the order of the directory."""
        return list(self._places)

    def find(self, name: str) -> Record | None:
        """Return the directory's entry for a record, but where it is; None: there is none."""
        place = self._places.get(name)
        return None if place is None else place.record

    def record(self, name: str) -> Record:
        """Return the directory's entry for a record, but where it is."""
        return self._place(name).record

    def _place(self, name: str) -> _Place:
        if name not in self._places:
            raise self._damaged(f"record {name!r} is missing")
        return self._places[name]

    def read_bytes(self, name: str) -> bytes:
        """Return the bytes of a record.

        Raises:
            OSError: they cannot be read.
            fxpress.ArchiveError: there is none, or it is damaged.
        """
        if name not in self._held:
            place = self._place(name)
            self.budget.charge(place.record.size, f"record {name!r}")
            stream = _Stream(self.file, place.begin, place.end)
            data = b"".join(self._data(name, stream))
            self.budget.grow(len(data))
            if _native.crc32(data) != place.record.crc:
                raise self._damaged(f"record {name!r} is damaged: its checksum is wrong")
            self._held[name] = data
        return self._held[name]

    def read_string(self, name: str) -> str:
        """Return a record as text.

        Raises:
            OSError: it cannot be read.
            fxpress.ArchiveError: there is none, or it is damaged.
        """
        try:
            return self.read_bytes(name).decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"record {name!r} is damaged: it is not UTF-8: {error}") from None

    def begin_of(self, name: str) -> int:
        """Return where the data of a record begins, which only the header before it says.

        Raises:
            OSError: it cannot be read.
            fxpress.ArchiveError: there is none, or its header is damaged.
        """
        begin = self._place(name).begin
        return self._begin(name, self.file.read(begin, begin + _HEADER.size))

    def _begin(self, name: str, header: bytes) -> int:
        place = self._places[name]
        signature, *sizes = _HEADER.unpack(header)
        start: int = place.begin + _HEADER.size + sum(sizes)
        if signature != _SIGNATURE or start + place.record.size > place.end:
            raise self._damaged(f"record {name!r} is damaged: its header is wrong")
        return start

    def _data(self, name: str, stream: _Stream) -> Iterator[memoryview]:
        """Yield the data of a record, whose header comes next in a stream."""
        place = self._places[name]
        stream.skip_to(place.begin)
        stream.skip_to(self._begin(name, b"".join(stream.take(_HEADER.size))))
        yield from stream.take(place.record.size)

    @contextlib.contextmanager
    def copied(self, model: str, *, weights: bool) -> Iterator[PT2ArchiveReader]:
        """Return a block with an archive on this machine that has one program of this one.

        Args:
            model: the name of the program.
            weights: False: its weights are zeros, which take no space.

        Raises:
            OSError: it cannot be read, or there is no space for the copy.
            fxpress.ArchiveError: it is damaged, or has changed since its directory was read.
        """
        this: Any = self
        wanted = dict.fromkeys(records_of(this, model))
        left_out = set() if weights else self._weights(model)
        with self.holding([name for name in wanted if name not in left_out], left_out) as reader:
            yield reader

    @contextlib.contextmanager
    def holding(
        self, records: Collection[str], zeros: Iterable[str] = ()
    ) -> Iterator[PT2ArchiveReader]:
        """Return a block with an archive on this machine that has some records of this one.

        Args:
            records: their names.
            zeros: the names of records that are zeros there, whatever they are here.

        Raises:
            OSError: they cannot be read, or there is no space for the copy.
            fxpress.ArchiveError: they are damaged, or the archive has changed since its directory
                was read.
        """
        with self._copy(records, zeros) as file, self._opened(file) as reader:
            yield reader

    def _opened(self, file: IO[bytes]) -> PT2ArchiveReader:
        return PT2ArchiveReader(file, limits=self._limits)

    def _copy(self, records: Collection[str], zeros: Iterable[str]) -> IO[bytes]:
        with contextlib.ExitStack() as on_errors:
            file: IO[bytes] = on_errors.enter_context(tempfile.TemporaryFile())
            with PT2ArchiveWriter(_Sparse(file)) as writer:
                for name in zeros:
                    size = self.record(name).size
                    writer.write_stream(name, size, _zeros(size))
                for name, data in self._read(records):
                    writer.write_stream(name, self.record(name).size, data)
            file.seek(0)
            self.file.check()
            self._compare(file, records)
            on_errors.pop_all()
        self._held.clear()
        return file

    def _weights(self, model: str) -> set[str]:
        """Return the records of the weights that are made without their values."""
        this: Any = self
        config = read_config(this, names.weights_config_record(model))
        return {names.WEIGHTS_DIR + each.record for each in config if not each.is_pickled}

    def _read(self, wanted: Collection[str]) -> Iterator[tuple[str, Iterator[memoryview]]]:
        """Yield records and their data, in the order in which they are in the file."""
        held = [name for name in wanted if name in self._held]
        yield from ((name, iter([memoryview(self._held[name])])) for name in held)
        others = [name for name in wanted if name not in self._held]
        for run in self._runs(sorted(others, key=lambda name: self._place(name).begin)):
            stream = _Stream(self.file, self._places[run[0]].begin, self._places[run[-1]].end)
            for name in run:
                yield name, self._data(name, stream)

    def _runs(self, names: list[str]) -> Iterator[list[str]]:
        """Yield records in runs, each of which is read as one range."""
        run: list[str] = []
        for name in names:
            if run and self._places[name].begin - self._places[run[-1]].end > _GAP:
                yield run
                run = []
            run.append(name)
        if run:
            yield run

    def _compare(self, file: IO[bytes], names: Collection[str]) -> None:
        """Compare the checksums of a copy with those of the directory."""
        with self._opened(file) as reader:
            for name in names:
                if reader.record(name).crc != self.record(name).crc:
                    raise self._damaged(f"record {name!r} is damaged: its checksum is wrong")
        file.seek(0)


class _End(io.RawIOBase):
    """The file as `zipfile` sees it, which reads its directory only."""

    def __init__(self, file: RemoteFile, budget: Budget) -> None:
        self._file, self._budget, self._at = file, budget, 0
        self._begin = max(file.size - _TAIL, 0)
        self._tail = file.read(self._begin, file.size)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = max(offset + (0, self._at, self._file.size)[whence], 0)
        return self._at

    def read(self, size: int = -1) -> bytes:
        end = self._file.size if size < 0 else min(self._at + size, self._file.size)
        begin, self._at = min(self._at, end), end
        if begin < self._begin:
            missing = min(end, self._begin) - begin
            place = f"the directory of {self._file.path}"
            self._budget.charge(missing, place)
            rest = b"".join(self._file.pieces(begin, begin + missing))
            self._budget.grow(missing)
            self._budget.charge(missing * _RECORD_BYTES, place)
            return rest + self._tail[: max(end - self._begin, 0)]
        return self._tail[begin - self._begin : end - self._begin]


class _Stream:
    """The bytes of a range of a file, from front to back."""

    def __init__(self, file: RemoteFile, begin: int, end: int) -> None:
        self._pieces, self._at = file.pieces(begin, end), begin
        self._left = memoryview(b"")

    def take(self, count: int) -> Iterator[memoryview]:
        """Yield the next bytes in pieces."""
        while count:
            if not self._left:
                self._left = memoryview(next(self._pieces, b""))
            part, self._left = self._left[:count], self._left[count:]
            if not part:
                raise ArchiveError("the archive is damaged: a record ends behind its range")
            count -= len(part)
            self._at += len(part)
            yield part

    def skip_to(self, offset: int) -> None:
        """Leave out the bytes up to an offset in the file."""
        for _ in self.take(offset - self._at):
            pass


class _Sparse:
    """Writes to a file, but zeros that fill a piece, which the file then has without space."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        if len(data) == len(_ZEROS) and data == _ZEROS:
            self._file.seek(len(data), io.SEEK_CUR)
        else:
            self._file.write(data)
        return len(data)


def _zeros(size: int) -> Iterator[memoryview]:
    for start in range(0, size, len(_ZEROS)):
        yield memoryview(_ZEROS)[: size - start]


def _root_of(paths: list[str]) -> str:
    """Return the folder that all records are in, with its slash; "" for none."""
    root, slash, _ = paths[0].partition("/") if paths else ("", "", "")
    prefix = root + slash
    is_root = slash and all(each.startswith(prefix) and each != prefix for each in paths)
    return prefix if is_root else ""
