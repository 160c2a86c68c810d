"""Write an archive, record by record."""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

from fxpress import _native
from fxpress._base.signatures import expand_aliases
from fxpress._files.archive.files import AtomicFile, Output, is_path, open_output
from fxpress._files.archive.replacing import commit_files, remove_abandoned
from fxpress._files.errors import ArchiveError, archive_errors
from fxpress._files.format import names

# The ways to replace the file at a path.
Replace: TypeAlias = Literal["whole", "in_place"]


def _root_of(path: str) -> str:
    """Return the folder of all records in the zip file. torch names it after the file."""
    name = path.replace("\\", "/").rpartition("/")[2]
    root = name.rpartition(".")[0] if "." in name else name
    if not root:
        raise RuntimeError(f"invalid file name: {path}")
    return os.fsencode(root).decode(errors="replace")  # record names in archives are UTF-8


def _check_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"expected the name of a record to be a str, got a {type(name).__name__}")
    try:
        name.encode()
    except UnicodeEncodeError as e:
        raise ArchiveError(f"{name!r} cannot be the name of a record: {e}") from None


def _check_path(path: Any) -> None:
    if not is_path(path):
        raise TypeError(f"expected the path of a file, got a {type(path).__name__}")


class _Report:
    """Forwards reports of the native writer to a function that may change.

    The garbage collector cannot traverse the native writer. A reference from the native writer to
    the `PT2ArchiveWriter`, which owns it, would therefore create a cycle that is never freed.
    """

    bar: Callable[[int], None] | None = None

    def __call__(self, count: int) -> None:
        if self.bar is not None:
            self.bar(count)


class Stored(NamedTuple):
    """A record, or a range of a record, in memory."""

    name: str
    whole: int  # bytes of the entire record
    start: int  # offset in the record, in bytes
    address: int
    size: int  # in bytes


class PT2ArchiveWriter:
    """A writer of an archive. As in torch, a `with` block completes the archive even if it raises.

    The file at a path is replaced when the archive is complete, and is unchanged until then. Bytes
    are written to a file object immediately.

    Args:
        archive_path_or_buffer: a path, or an object with a method `write`.
        replace: "whole": replace the file at the path by another; "in_place": write the complete
            new bytes into the file.

    Raises:
        OSError: the file cannot be written.
        fxpress.ArchiveError: a record is written twice, or its name or text is invalid.
        RuntimeError: the path does not name a file.
        TypeError: the argument is neither a path nor an object with `write`.
        ValueError: `replace` is unknown, the file is closed, or a path has a null character.

    Stands in for `torch.export.pt2_archive.PT2ArchiveWriter`.

    Example:
        >>> from fxpress.archive import PT2ArchiveWriter
        >>> with PT2ArchiveWriter("notes.pt2") as writer:
        ...     writer.write_string("extra/notes.txt", "hello")
    """

    @expand_aliases
    def __init__(self, archive_path_or_buffer: Any, *, replace: Replace = "whole") -> None:
        self._file: Output | None = None
        self._weights: list[AtomicFile] = []  # sidecar files
        self._native: _native.ArchiveWriter | None = None
        self._path: str | None = None
        self._report = _Report()
        if replace not in ("whole", "in_place"):
            raise ValueError(f'expected replace to be "whole" or "in_place", got {replace!r}')
        if is_path(archive_path_or_buffer):
            self._path = os.fsdecode(archive_path_or_buffer)
            root = _root_of(self._path)
            if replace == "whole":  # first, so that killed writers leave at most one file
                remove_abandoned(Path(os.path.realpath(self._path)))
            self._file = open_output(self._path, in_place=replace == "in_place")
            target: Any = self._file.descriptor
        else:
            target, root = getattr(archive_path_or_buffer, "write", None), "archive"
            if not callable(target):
                kind = type(archive_path_or_buffer).__name__
                raise TypeError(f"expected a path or an open file to write to, got a {kind}")
        self._native = _native.ArchiveWriter(target, root, self._report)

    @property
    def target(self) -> Path | None:
        """The path of the file to replace; None if it is overwritten in place or is not regular."""
        return self._file.target if isinstance(self._file, AtomicFile) else None

    def add_weights_file(self, weights: AtomicFile) -> None:
        """Add a complete sidecar file, which is moved to its path together with the archive."""
        self._weights.append(weights)

    @contextlib.contextmanager
    def reporting_to(self, bar: Callable[[int], None] | None) -> Any:
        """During the block, call `bar` with the number of bytes of each write."""
        self._report.bar = bar
        try:
            yield
        finally:
            self._report.bar = None

    def __enter__(self) -> PT2ArchiveWriter:
        return self

    def __exit__(self, error: object = None, *_: object) -> None:
        if self._native is None:
            return  # the archive was abandoned
        try:
            self.complete()
        except Exception:
            self.abandon()
            if error is None:
                raise

    def complete(self) -> None:
        """Call `finish`, and close the archive."""
        self.finish()
        self.close()

    def finish(self) -> None:
        """Write the records of format and version if they are missing, then the zip directory."""
        if not self.has_record(names.ARCHIVE_FORMAT_PATH):
            self.write_string(names.ARCHIVE_FORMAT_PATH, names.ARCHIVE_FORMAT_VALUE)
        if not self.has_record(names.ARCHIVE_VERSION_PATH):
            self.write_string(names.ARCHIVE_VERSION_PATH, names.ARCHIVE_VERSION_VALUE)
        with self._errors():
            self._writer.finish()

    def has_record(self, name: str) -> bool:
        """Return whether a record of that name was written."""
        return self._writer.has_record(name.encode(errors="surrogatepass"))

    def count_prefix(self, prefix: str) -> int:
        """Return the number of records whose names start with a prefix."""
        return self._writer.count_records(prefix.encode(errors="surrogatepass"))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Write a record; AssertionError unless `data` is of the type bytes."""
        if not isinstance(data, bytes):
            raise AssertionError(f"Expected bytes but got {type(data)}")
        _check_name(name)
        with self._errors():
            self._writer.add(name, data)

    def write_string(self, name: str, data: str) -> None:
        """Write a record in UTF-8; AssertionError unless `data` is of the type str."""
        if not isinstance(data, str):
            raise AssertionError(f"Expected string but got {type(data)}")
        try:
            encoded = data.encode()
        except UnicodeEncodeError as e:
            raise ArchiveError(f"record {name!r}: the text is not Unicode: {e}") from None
        self.write_bytes(name, encoded)

    def write_file(self, name: str, file_path: str) -> None:
        """Copy a file into a record; AssertionError if the file does not exist."""
        _check_path(file_path)
        if not os.path.isfile(file_path):
            raise AssertionError(f"{file_path} is not a valid file path")
        with open(file_path, "rb") as file:
            self.write_stream(
                name, os.fstat(file.fileno()).st_size, iter(lambda: file.read(1 << 22), b"")
            )

    def write_folder(self, archive_dir: str, folder_dir: str) -> None:
        """Copy the files in a folder and its subfolders into records below `archive_dir`.

        AssertionError if the folder does not exist. As in torch, hidden files are left out.
        """
        _check_path(folder_dir)
        if not os.path.isdir(folder_dir):
            raise AssertionError(f"{folder_dir} is not a valid directory path")
        for path in _visible_files(Path(folder_dir)):
            name = path.relative_to(folder_dir).as_posix()
            self.write_file(os.path.join(archive_dir, name), str(path))

    def write_stream(self, name: str, size: int, pieces: Any) -> None:
        """Write a record of `size` bytes from an iterable of bytes-like objects."""
        _check_name(name)
        with self._errors():
            self._writer.begin(name, size)
            for piece in pieces:
                self._writer.append(piece)
            self._writer.end()

    def write_memory(self, parts: list[Stored]) -> None:
        """Write records from memory that no other thread modifies.

        Several calls may pass the ranges of one record in order.
        """
        with self._errors():
            self._writer.add_memory(parts)

    def close(self) -> None:
        """Complete the file. Nothing can be written afterwards."""
        try:
            with self._errors():
                if not self._writer.is_finished:
                    self._writer.finish()
                if self._file is not None:
                    commit_files(self._file, self._weights)
                    self._file.close()
        except BaseException:
            self.abandon()
            raise
        finally:
            self._discard_weights()

    def abandon(self) -> None:
        """Discard the archive; the file at the path stays. Nothing can be written afterwards."""
        self._native = None  # first, because another file may get the closed descriptor
        if self._file is not None:
            self._file.discard()
        self._discard_weights()

    def _discard_weights(self) -> None:
        """Remove the files of weights that were not moved to their paths."""
        for file in self._weights:
            file.discard()

    @property
    def _writer(self) -> _native.ArchiveWriter:
        if self._native is None:
            raise ArchiveError("the archive was abandoned: nothing can be written to it")
        return self._native

    @contextlib.contextmanager
    def _errors(self) -> Any:
        """Convert native errors in the block, and add the file's name to an OSError."""
        try:
            with archive_errors():
                yield
        except OSError as e:
            self.abandon()
            if self._path is None or e.filename is not None or e.errno is None:
                raise
            raise type(e)(e.errno, e.strerror, self._path) from None


def _visible_files(folder: Path) -> list[Path]:
    """Return the files of a folder, except hidden files, in the order of `glob.glob`."""
    pattern = f"{glob.escape(str(folder))}/**"
    return [Path(path) for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)]
