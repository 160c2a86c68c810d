"""Reach files by URL, through fsspec, which torch depends on."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from fxpress._base.errors import UnsupportedError


def url_of(path: str | bytes | os.PathLike[str]) -> str | None:
    """Return a path that is a URL; None for one of this machine, also with `file://`."""
    text = os.fsdecode(path)
    if "://" not in text or text.startswith(("file://", "local://")):
        return None
    return text


def local_path(path: str | bytes | os.PathLike[str]) -> str:
    """Return the path of this machine that is given as such or with `file://`."""
    text = os.fsdecode(path)
    for scheme in ("file://", "local://"):
        if text.startswith(scheme):
            return text.removeprefix(scheme)
    return text


def shown(url: str) -> str:
    """Return a URL without what may be secret in it: a password, a signature."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def is_archive(url: str) -> bool:
    """Return whether a URL names one archive of all stages, and not a folder."""
    parts = urlsplit(url)
    return (parts.netloc + parts.path).endswith(".pt2")  # memory://stages.pt2 has no path


def joined(url: str, name: str) -> str:
    """Return the URL of a file in a folder."""
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def opened_system(url: str) -> tuple[Any, str]:
    """Return fsspec's file system and path for a URL, or raise UnsupportedError or OSError."""
    import fsspec

    try:
        with reaching(url):
            found: tuple[Any, str] = fsspec.core.url_to_fs(url)
            return found
    except OSError as error:
        if isinstance(error.__cause__, (ImportError, ValueError)):
            raise UnsupportedError(f"{shown(url)} cannot be opened: {error.__cause__}") from error
        raise


@contextlib.contextmanager
def reaching(url: str) -> Iterator[None]:
    """Raise what goes wrong in the block, of whatever library, as an OSError that names the URL."""
    try:
        yield
    except MemoryError:
        raise
    except FileNotFoundError as error:
        text = os.strerror(errno.ENOENT)
        raise FileNotFoundError(errno.ENOENT, text, shown(url)) from error
    except Exception as error:
        text = str(error).replace(url, shown(url))
        raise OSError(f"{shown(url)}: {type(error).__name__}: {text}") from error
