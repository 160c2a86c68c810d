"""Represent paths of files at URLs, and read ranges of bytes from these files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from fxpress._files.errors import ArchiveError
from fxpress._files.format.limit_values import DEFAULT
from fxpress._files.format.recognition import read_file
from fxpress._files.remote.urls import joined, opened_system, reached, shown

PIECE = 16 << 20  # bytes of one request
_SMALL_PIECE = 4 << 20  # bytes of one request that reads a part of a tensor
# Entries of fsspec's `info()` that change when a file changes. Each file system has some of them.
_VERSION = (
    *("size", "ETag", "etag", "mtime", "created", "LastModified", "last_modified", "generation"),
    *("VersionId", "md5Hash", "md5", "Content-MD5", "Digest", "ino"),
)


class ChangedFileError(ArchiveError):
    """A file has changed since it was opened."""


class UrlPath:
    """A URL with some methods of `pathlib.Path`; `str()` omits the secrets in the URL."""

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def name(self) -> str:
        """The part of the URL after the last slash, without a query."""
        parts = urlsplit(self.url)
        # The path of memory://model.pt2 is empty, and the netloc is model.pt2.
        return PurePosixPath(parts.netloc + parts.path).name

    @property
    def parent(self) -> UrlPath:
        """The parent folder."""
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/").rpartition("/")[0]
        return UrlPath(parts._replace(path=path).geturl())

    def __truediv__(self, name: str) -> UrlPath:
        return UrlPath(joined(self.url, name))

    def with_name(self, name: str) -> UrlPath:
        """Return the path of another file in the same folder."""
        return self.parent / name

    def is_file(self) -> bool:
        """Return whether the file exists; OSError if the URL cannot be reached."""
        system, path = opened_system(self.url)

        def info() -> Any:
            system.invalidate_cache(path)
            return system.info(path)

        try:
            return bool(reached(self.url, info)["type"] == "file")
        except FileNotFoundError:
            return False


AnyPath: TypeAlias = Path | UrlPath


def read_path(path: AnyPath) -> bytes:
    """Return a small file's bytes; OSError if that fails, ArchiveError if a remote file changes."""
    if isinstance(path, Path):
        return read_file(path)
    file = RemoteFile(path.url)
    if file.size > DEFAULT.memory:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return file.read_all()


class RemoteFile:
    """A file at a URL, opened on first use. Any thread may read ranges of the file.

    The constructor raises UnsupportedError if fsspec does not support the URL. The first use raises
    FileNotFoundError, or OSError if the server is unreachable or lacks support for ranges or sizes.
    """

    gap = 1 << 14

    def __init__(self, url: str) -> None:
        self.url, self.path = url, UrlPath(url)
        self._system, self._place = opened_system(url)
        self._version: dict[str, Any] = {}  # entries of `_VERSION`; empty until the first use
        self._idle: list[Any] = []  # file objects of fsspec that no thread uses

    @property
    def size(self) -> int:
        """The size in bytes when the file was opened."""
        if not self._version:
            version = self._describe()
            if type(version.get("size")) is not int or version["size"] < 0:
                raise OSError(f"{self.path}: the server does not report the size of the file")
            self._idle.append(self._open_file())
            self._version = version
        return int(self._version["size"])

    def _open_file(self) -> Any:
        options = {"block_size": PIECE, "cache_type": "none"}
        return reached(self.url, lambda: self._system.open(self._place, "rb", **options))

    def _describe(self) -> dict[str, Any]:
        def described() -> dict[str, Any]:
            self._system.invalidate_cache(self._place)
            found = self._system.info(self._place)
            return {name: found[name] for name in _VERSION if found.get(name) is not None}

        return reached(self.url, described)

    def read(self, begin: int, end: int) -> bytes:
        """Request a range; ArchiveError if it exceeds the file, OSError if the request fails."""
        if not 0 <= begin <= end <= self.size:
            raise ArchiveError(
                f"{self.path} is damaged: it does not contain bytes {begin} to {end}"
            )
        if begin == end:
            return b""
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._open_file()

        def read() -> bytes:
            file.seek(begin)
            return bytes(file.read(end - begin))

        data = reached(self.url, read)
        self._idle.append(file)
        if len(data) != end - begin:
            raise OSError(f"{self.path}: expected bytes {begin} to {end}, got {len(data)} bytes")
        return data

    def read_into(self, begin: int, target: memoryview) -> None:
        """Fill memory with the bytes from `begin` on; raises the errors of `read`."""
        for piece in self.pieces(begin, begin + len(target), _SMALL_PIECE):
            target[: len(piece)] = piece
            target = target[len(piece) :]

    def read_all(self) -> bytes:
        """Return the bytes of the file; ChangedFileError if it changes during the read."""
        data = b"".join(self.pieces(0, self.size))
        self.check()
        return data

    def pieces(self, begin: int, end: int, most: int = PIECE) -> Iterator[bytes]:
        """Yield the bytes from `begin` to `end`, by requests of at most `most` bytes."""
        for start in range(begin, end, most):
            yield self.read(start, min(start + most, end))

    def check(self) -> None:
        """Raise ChangedFileError if the file has changed, or OSError if it is unreachable."""
        if self._version and self._describe() != self._version:
            raise ChangedFileError(f"{self.path} has changed while it was read")
