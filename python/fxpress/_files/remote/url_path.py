"""A path at a URL, with the methods of `pathlib.Path` that the component needs."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TypeAlias
from urllib.parse import urlsplit

from fxpress._files.remote.remote_file import RemoteFile
from fxpress._files.remote.urls import joined, opened_system, reaching, shown


class UrlPath:
    """A path at a URL; as a text, it is without what may be secret in it.

    Args:
        url: its URL.

    Attributes:
        url: its URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __str__(self) -> str:
        return shown(self.url)

    @property
    def name(self) -> str:
        """The part behind the last slash."""
        parts = urlsplit(self.url)
        return PurePosixPath(parts.netloc + parts.path).name  # memory://model.pt2 has no path

    @property
    def parent(self) -> UrlPath:
        """The folder that it is in."""
        parts = urlsplit(self.url)
        path = parts.path.rstrip("/").rpartition("/")[0]
        return UrlPath(parts._replace(path=path).geturl())

    def __truediv__(self, name: str) -> UrlPath:
        return UrlPath(joined(self.url, name))

    def with_name(self, name: str) -> UrlPath:
        """Return the path of another file in its folder."""
        return self.parent / name

    def is_file(self) -> bool:
        """Return whether there is a file.

        Raises:
            OSError: it cannot be found out.
        """
        system, path = opened_system(self.url)
        try:
            with reaching(self.url):
                system.invalidate_cache(path)
                return bool(system.info(path)["type"] == "file")
        except FileNotFoundError:
            return False

    def read_bytes(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            OSError: it cannot be read.
            ArchiveError: it changes while it is read.
        """
        file = RemoteFile(self.url)
        data = b"".join(file.pieces(0, file.size))
        file.check()
        return data


AnyPath: TypeAlias = Path | UrlPath
