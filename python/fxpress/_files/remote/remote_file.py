"""Read ranges of a file by its URL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fxpress._files.errors import ArchiveError
from fxpress._files.remote.urls import opened_system, reaching, shown

PIECE = 16 << 20  # bytes of one request
# What file systems say of a version of a file; of each, what they have.
_VERSION = (
    *("size", "ETag", "etag", "mtime", "created", "LastModified", "last_modified", "generation"),
    *("VersionId", "md5Hash", "md5", "Content-MD5", "Digest", "ino"),
)


class ChangedFileError(ArchiveError):
    """A file is not the one that was opened."""


class RemoteFile:
    """A file that is read by ranges, none of which it keeps.

    Args:
        url: of the file.

    Attributes:
        url: of the file.
        shown: the URL, for errors.
        size: bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError: it cannot be reached, or its server gives no ranges or says no size.
        fxpress.UnsupportedError: fsspec has nothing for the URL.
    """

    def __init__(self, url: str) -> None:
        self.url, self.shown = url, shown(url)
        self._system, self._path = opened_system(url)
        self._version = self._described()
        size = self._version.get("size")
        if type(size) is not int or size < 0:
            raise OSError(f"{self.shown}: its server does not say how large it is")
        self.size = size
        self._idle: list[Any] = [self._opened()]  # files of fsspec that no thread reads from

    def _opened(self) -> Any:
        with reaching(self.url):
            return self._system.open(self._path, "rb", block_size=PIECE, cache_type="none")

    def _described(self) -> dict[str, Any]:
        with reaching(self.url):
            self._system.invalidate_cache(self._path)
            found = self._system.info(self._path)
            return {name: found[name] for name in _VERSION if found.get(name) is not None}

    def read(self, begin: int, end: int) -> bytes:
        """Return the bytes from `begin` up to `end`, which are in the file.

        Several threads may read at once.

        Raises:
            OSError: they cannot be read, or are fewer or more.
            ArchiveError: the file has no such bytes.
        """
        if not 0 <= begin <= end <= self.size:
            raise ArchiveError(f"{self.shown} is damaged: it has no bytes {begin} to {end}")
        if begin == end:
            return b""
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._opened()
        with reaching(self.url):
            file.seek(begin)
            data: bytes = file.read(end - begin)
        self._idle.append(file)
        if len(data) != end - begin:
            raise OSError(
                f"{self.shown}: its server gave {len(data)} bytes instead of those from {begin} "
                f"to {end}"
            )
        return data

    def pieces(self, begin: int, end: int, most: int = PIECE) -> Iterator[bytes]:
        """Yield the bytes from `begin` up to `end` in pieces of `most` bytes."""
        for start in range(begin, end, most):
            yield self.read(start, min(start + most, end))

    def check(self) -> None:
        """Refuse a file that is not the one that was opened.

        Raises:
            OSError: it cannot be reached.
            ChangedFileError: it has changed.
        """
        if self._described() != self._version:
            raise ChangedFileError(f"{self.shown} has changed while it was read")
