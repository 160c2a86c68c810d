"""Read byte ranges of files on this machine or at a URL."""

from __future__ import annotations

import contextlib
import io
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeAlias, TypeVar

from fxpress import _native
from fxpress._files.errors import ArchiveError
from fxpress._files.format.package import WRONG_CHECKSUM
from fxpress._files.format.recognition import open_file
from fxpress._files.remote.remote_file import AnyPath, RemoteFile

_MOST_OPEN = 64  # open files; far below the operating system's limit for a process
_PIECE = 1 << 22  # bytes that are read at a time to compute a checksum
_REQUESTS = 8  # concurrent requests
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class LocalFile:
    """A local file, opened on the first read. Its owner, `files`, may close it between reads."""

    gap = 512  # ranges that are at most this many bytes apart should be read as one range

    def __init__(self, path: Path, files: Files) -> None:
        self.path = path
        self._files = files
        self._open: IO[bytes] | None = None
        self._identity: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """The size in bytes when the file was first opened."""
        self.raw()
        assert self._identity is not None
        return self._identity[-1]

    def raw(self) -> IO[bytes]:
        """Return the open file; ArchiveError if it has changed, OSError if it cannot be opened."""
        if self._open is None:
            opened = io.FileIO(self.path, opener=open_file)
            try:
                status = os.fstat(opened.fileno())
                identity = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if self._identity not in (None, identity):
                    raise ArchiveError(f"{self.path} has changed while it was read")
            except BaseException:
                opened.close()
                raise
            self._identity, self._open = identity, opened
        self._files.used(self)
        return self._open

    def close(self) -> None:
        """Close the file; the next read reopens it."""
        if self._open is not None:
            opened, self._open = self._open, None
            opened.close()

    def read_into(self, begin: int, target: memoryview) -> None:
        """Fill memory with the bytes from `begin` on; ArchiveError if the file is too short."""
        descriptor = self.raw().fileno()
        done, size = 0, len(target)
        while done < size:
            got = os.preadv(descriptor, [target[done:]], begin + done)
            if got == 0:
                raise self._truncated(begin + size)
            done += got

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` to `end`; raises the errors of `read_into`."""
        if not begin <= end <= self.size:  # wrong offsets in a file could allocate too much
            raise self._truncated(end)
        data = bytearray(end - begin)
        with memoryview(data) as view:
            self.read_into(begin, view)
        return bytes(data)

    def _truncated(self, end: int) -> ArchiveError:
        found = f"expected at least {end} bytes, found {self.size}"
        return ArchiveError(f"{self.path} is damaged: it is truncated: {found}")


File: TypeAlias = LocalFile | RemoteFile


class Files:
    """The files of a checkpoint. At most `_MOST_OPEN` local files are open at a time."""

    def __init__(self) -> None:
        self._open: OrderedDict[int, LocalFile] = OrderedDict()
        self._remote: list[RemoteFile] = []

    def file(self, path: AnyPath, opened: RemoteFile | None = None) -> File:
        """Return the file at `path`. `opened` is this file, if its URL is open already."""
        if isinstance(path, Path):
            return LocalFile(path, self)
        file = RemoteFile(path.url) if opened is None else opened
        self._remote.append(file)
        return file

    def each(self, call: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
        """Return `call(item)` for each item; the calls are concurrent if a file is at a URL."""
        if not self._remote:
            return [call(item) for item in items]
        with ThreadPoolExecutor(_REQUESTS) as pool:
            return list(pool.map(call, items))

    def check(self) -> None:
        """Raise ArchiveError if a file at a URL has changed; OSError if it is unreachable."""
        self.each(RemoteFile.check, self._remote)

    def used(self, file: LocalFile) -> None:
        """Mark a file as used, and close the least recently used one if too many are open."""
        self._open[id(file)] = file
        self._open.move_to_end(id(file))
        if len(self._open) > _MOST_OPEN:
            self._open.popitem(last=False)[1].close()

    def close(self) -> None:
        """Close all files."""
        while self._open:
            with contextlib.suppress(OSError):
                self._open.popitem()[1].close()


class Checked:
    """A range of bytes in `file` whose CRC-32 is known; `what` names the range in messages."""

    __slots__ = ("begin", "crc", "file", "size", "what")

    def __init__(self, file: File, begin: int, size: int, crc: int, what: str) -> None:
        self.file, self.begin, self.size, self.crc, self.what = file, begin, size, crc, what

    def compare(self, crc: int) -> None:
        """Raise ArchiveError if `crc`, computed from the bytes read, is not the known CRC-32."""
        if crc != self.crc:
            raise ArchiveError(f"{self.file.path}: {self.what} is damaged: {WRONG_CHECKSUM}")

    def check(self) -> None:
        """Read the range and compare its checksum."""
        memory = memoryview(bytearray(min(self.size, _PIECE)))
        crc = _native.crc32(b"")
        for start in range(0, self.size, _PIECE):
            piece = memory[: min(_PIECE, self.size - start)]
            self.file.read_into(self.begin + start, piece)
            crc = _native.crc32_of_both(crc, _native.crc32(piece), len(piece))
        self.compare(crc)
