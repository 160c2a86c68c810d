"""Read an archive, record by record."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple, ParamSpec, TypeVar

import torch

from fxpress import _native
from fxpress._base.errors import is_about_input
from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._files import errors
from fxpress._files.archive.files import is_path, sizes_of_file, source_path
from fxpress._files.format import names, package
from fxpress._files.format.recognition import HEAD, format_of_bytes, format_of_records, open_file
from fxpress._files.serde.artifacts import unpack
from fxpress._files.serde.limits import Budget, Limits
from fxpress._torch.watching import operation

log = logging.getLogger("fxpress")
_MOST_RETRIES = 20  # how often a read is repeated because its file was replaced
P = ParamSpec("P")
R = TypeVar("R")


class Target(NamedTuple):
    """A range of a record, and the memory into which it is read."""

    name: str
    start: int  # offset in the record, in bytes
    size: int  # in bytes
    address: int  # 0: only compute the checksum of the range


class PT2ArchiveReader:
    """A reader of an archive.

    The names of records do not include the folder that all records have in common.

    Args:
        archive_path_or_buffer: a path (bytes count as a path), an object with a buffer, or an open
            file, which is read from its position on.
        check_crc: whether records are compared with their checksums.
        limits: the limits on the total cost of reading; None: the defaults of
            `fxpress.archive.Limits`.

    Raises:
        OSError: the file cannot be read.
        fxpress.ArchiveError: the file is damaged, or is not an archive. The error is also an
            AssertionError if the archive has another format.
        fxpress.LimitError: compressed records exceed the limits; methods that read may raise this.
        TypeError: the argument is not a path, a buffer or a file, or the file does not return
            bytes.
        ValueError: the file is closed, a path has a null character, or the argument is the bytes
            of a zip file.

    Stands in for `torch.export.pt2_archive.PT2ArchiveReader`.

    Example:
        >>> from fxpress.archive import PT2ArchiveReader
        >>> fxpress.save(program, "model.pt2")
        >>> with PT2ArchiveReader("model.pt2") as reader:
        ...     reader.read_string("archive_format")
        'pt2'
    """

    _most_threads = 8  # the maximum number of threads that read records

    def __init__(
        self,
        archive_path_or_buffer: Any,
        *,
        check_crc: bool = True,
        limits: Limits | Budget | None = None,
    ) -> None:
        self._open(archive_path_or_buffer, check_crc, limits)
        try:
            self.check_format()
        except BaseException:
            self.close()
            raise

    @classmethod
    def of_any_format(
        cls, f: Any, *, check_crc: bool = True, limits: Limits | None = None
    ) -> PT2ArchiveReader:
        """Return a reader of any zip file, even if it is not a pt2 archive."""
        reader = cls.__new__(cls)
        reader._open(f, check_crc, limits)
        return reader

    def _set_up(self, check_crc: bool) -> None:
        self._check_crc = check_crc
        self._file: int | None = None  # the reader's own descriptor
        self._native: Any = None
        self._begun: dict[str, int] = {}  # record -> checksum of the ranges read so far
        self._views: list[memoryview] = []
        self._start = 0  # offset of the archive in the file

    def _open(self, f: Any, check_crc: bool, limits: Limits | Budget | None) -> None:
        self._set_up(bool(check_crc))
        path = source_path(f)
        self._views = _views_of(f) if path is None else []
        if path is not None:
            self._file = open_file(path)
        elif not self._views:
            descriptor = _descriptor_of(f)
            if descriptor is None:
                self._views = [_contents_of(f)]
            else:  # the reader owns a duplicate, so the caller may close the file
                self._start = _position_of(f)
                self._file = os.dup(descriptor)
        try:
            self._read_directory(self._views[0] if self._file is None else self._file)
            self.budget = Budget.of(limits, self._size())
        except BaseException:
            self.close()
            raise

    def _read_directory(self, source: Any) -> None:
        try:
            with errors.archive_errors():
                self._native = _native.ArchiveReader(source, self._start)
                self._records = self._native.records()
        except errors.ArchiveError:
            other = format_of_bytes(self._head())
            if other is None:
                raise
            raise errors.ArchiveError(other.text()) from None

    def _head(self) -> bytes:
        if self._file is None:
            return bytes(self._views[0][:HEAD])
        return os.pread(self._file, HEAD, self._start)

    def _size(self) -> int:
        if self._file is None:
            return len(self._views[0])
        return os.fstat(self._file).st_size - self._start

    def __enter__(self) -> PT2ArchiveReader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file or the buffer. Nothing can be read afterwards."""
        self._native = None
        for view in self._views:
            view.release()
        self._views = []
        if self._file is not None:
            descriptor, self._file = self._file, None  # assigned first, because os.close() may fail
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()

    @property
    def _reader(self) -> Any:
        if self._native is None:
            raise ValueError("the archive is closed: records cannot be read any more")
        return self._native

    def mapped(self) -> torch.UntypedStorage | None:
        """Map the file into memory. Writes to the memory do not change the file."""
        assert self._file is not None
        size = os.fstat(self._file).st_size
        # Map the descriptor, because the path of the archive may refer to a newer file.
        with errors.named_lack_of_memory(f"the archive with {size} bytes cannot be mapped"):
            return torch.UntypedStorage.from_file(f"/proc/self/fd/{self._file}", False, size)

    def copy_to(self, file: IO[bytes]) -> None:
        """Write the entire archive into a file."""
        if self._file is None:
            file.write(self._views[0])
            return
        with open(f"/proc/self/fd/{self._file}", "rb") as whole:
            whole.seek(self._start)
            shutil.copyfileobj(whole, file)

    def get_file_names(self) -> list[str]:
        """Return the names of all records, in the order of the zip directory."""
        return list(self._records)

    def check_format(self) -> None:
        """Raise FormatError for an archive of another format than pt2."""
        if self.find(names.ARCHIVE_FORMAT_PATH) is None:
            other = format_of_records(self._records)
            if other is not None:
                raise errors.FormatError(other.text("a pt2 archive"))
        if self.read_string(names.ARCHIVE_FORMAT_PATH) != names.ARCHIVE_FORMAT_VALUE:
            raise errors.FormatError("Invalid archive format")

    def find(self, name: str) -> package.Record | None:
        """Return the zip directory's entry for a record; None if the record is missing."""
        found = self._records.get(name)
        return None if found is None else package.Record(*found)

    def record(self, name: str) -> package.Record:
        """Return the zip directory's entry for a record; ArchiveError if the record is missing."""
        found = self.find(name)
        if found is None:
            raise errors.ArchiveError(f"record {name!r} is missing")
        return found

    def read_bytes(self, name: str) -> bytes:
        """Return the bytes of a record; ArchiveError if it is missing or damaged.

        LimitError if the record is compressed and too large.
        """
        record = self.record(name)
        with errors.archive_errors():
            data: bytes = self._reader.stored_bytes(name)
        if record.is_deflated:
            try:
                data = unpack(data, record.size, f"record {name!r}", self.budget)
            except package.DamagedRecordError as e:
                raise errors.ArchiveError(f"record {name!r} is damaged: {e}") from None
        if self._check_crc and _native.crc32(data) != record.crc:
            raise errors.ArchiveError(f"record {name!r} is damaged: {package.WRONG_CHECKSUM}")
        return data

    def read_string(self, name: str) -> str:
        """Return a record as text; ArchiveError if it is missing or damaged."""
        data = self.read_bytes(name)
        if (width := package.character_bytes(data)) > 1:
            self.budget.charge(width * len(data), f"record {name!r}")
        try:
            return data.decode()
        except UnicodeDecodeError as e:
            raise errors.ArchiveError(f"record {name!r} is damaged: it is not UTF-8: {e}") from None

    def read_into(self, targets: Sequence[Target], report: Any = None) -> None:
        """Fill memory with records, or with ranges of records, on several threads.

        The ranges of a record must be in order. The checksum of a record is compared after its last
        range is read.

        Args:
            report: called with the number of bytes read since the last call.
        """
        threads = min(self._most_threads, len(os.sched_getaffinity(0)))
        with errors.archive_errors():
            crcs = self._reader.read_into(targets, self._check_crc, threads, report)
        for (name, start, size, _), of_part in zip(targets, crcs, strict=self._check_crc):
            _, _, whole, expected, _ = self._records[name]
            crc = of_part
            if start:
                crc = _native.crc32_of_both(self._begun.pop(name), of_part, size)
            if start + size < whole:
                self._begun[name] = crc
            elif crc != expected:
                raise errors.ArchiveError(f"record {name!r} is damaged: {package.WRONG_CHECKSUM}")

    def archive_version(self) -> int:
        """Return the version of the archive's format; 0 if the archive does not state it."""
        try:
            text = self.read_string(names.ARCHIVE_VERSION_PATH).strip()
        except errors.ArchiveError:
            return 0
        if not (text.isascii() and text.isdigit() and len(text) < 10):
            record = names.ARCHIVE_VERSION_PATH
            raise errors.ArchiveError(
                f"record {record!r} is damaged: {text[:40]!r} is not a version"
            )
        return int(text)


def _views_of(f: Any) -> list[memoryview]:
    """Return views of a buffer: read the first, and release all of them; [] for other objects."""
    with contextlib.suppress(TypeError):
        return [memoryview(f).cast("B")]
    if not hasattr(f, "getbuffer"):
        return []
    whole = f.getbuffer()
    return [whole[_position_of(f) :], whole]


def _position_of(f: Any) -> int:
    position = f.tell()
    if not isinstance(position, int) or position < 0:
        raise TypeError(f"expected tell() of the file to return an offset, got {position!r}")
    return position


def _contents_of(f: Any) -> memoryview:
    """Return the bytes that an object's method `read` returns; TypeError for other results."""
    if not callable(getattr(f, "read", None)):
        raise TypeError(f"expected a path, a buffer or an open file, got a {type(f).__name__}")
    data = f.read()
    try:
        return memoryview(data).cast("B")
    except TypeError:
        raise TypeError(
            f"expected read() of the file to return bytes, got a {type(data).__name__}"
        ) from None


def _descriptor_of(f: Any) -> int | None:
    """Return a file object's descriptor; None if the object may convert bytes, as `gzip` does."""
    plain = getattr(f, "file", f)  # `tempfile` wraps the file object
    if isinstance(plain, (io.BufferedReader, io.BufferedRandom)):
        plain = plain.raw
    return plain.fileno() if isinstance(plain, io.FileIO) else None


def is_pt2_package(serialized_model: bytes | str) -> bool:
    """Return whether an object is a pt2 archive.

    Args:
        serialized_model: the contents of a file as bytes, or a path.

    Stands in for `torch.export.pt2_archive.is_pt2_package`.

    Example:
        >>> from fxpress import archive
        >>> archive.is_pt2_package(b"something else")
        False
    """
    try:
        source: Any = serialized_model
        if isinstance(source, bytes):
            source = memoryview(source)
        with PT2ArchiveReader.of_any_format(source) as reader:
            return reader.read_bytes(names.ARCHIVE_FORMAT_PATH) == b"pt2"
    except Exception as e:
        if not is_about_input(e):
            raise
        log.info("Model is not a PT2 package")
        return False


@operation("archive.verify", lambda _, f, **__: sizes_of_file(f))
def verify(f: Any, *, limits: Limits | None = None, progress: Progress = None) -> None:
    """Read an entire file, and compare each record with its checksum. torch has no such function.

    Args:
        f: a path, an open file, or a buffer.
        limits: the limits on the cost of reading; None: the defaults of `fxpress.archive.Limits`.
        progress: how to show progress, in bytes; see `fxpress.load`.

    Raises:
        OSError: the file cannot be read.
        fxpress.ArchiveError: the file is not an archive, or damaged; the message names the record.
        fxpress.LimitError: compressed records exceed the limits.
        TypeError: `f` is not a path, a buffer or a file that returns bytes, or `progress` is of
            a wrong type.
        ImportError: `progress` needs a package that is not installed.
        ValueError: `f` is closed, or a path has a null character.

    Example:
        >>> from fxpress import archive
        >>> fxpress.save(program, "model.pt2")
        >>> archive.verify("model.pt2")
    """
    check_progress(progress)
    with PT2ArchiveReader.of_any_format(f, limits=limits) as archive:
        records = [(name, archive.record(name)) for name in archive.get_file_names()]
        for name, record in records:
            if record.is_deflated:
                archive.read_bytes(name)
        plain = [
            Target(name, 0, record.size, 0) for name, record in records if not record.is_deflated
        ]
        with reporting(progress, "checking", sum(target.size for target in plain)) as bar:
            archive.read_into(plain, bar)


def _identity(path: Any) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def retry_if_replaced(read: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that reads a path `f`, to retry if the file was replaced meanwhile."""

    @functools.wraps(read)
    def read_again(*args: P.args, **kwargs: P.kwargs) -> R:
        f = args[0] if args else kwargs.get("f")
        for _ in range(_MOST_RETRIES if is_path(f) else 0):
            before = _identity(f)
            try:
                return read(*args, **kwargs)
            except (FileNotFoundError, errors.ArchiveError):
                if _identity(f) in (before, None):
                    raise
        return read(*args, **kwargs)

    return read_again
