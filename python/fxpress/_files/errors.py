"""Define the exceptions for archives that cannot be read."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._torch.serde import SerializeError


class ArchiveError(SerializeError, ValueError, zipfile.BadZipFile):
    """A file is damaged or is not an archive. The message names the faulty record.

    The class derives from the errors that torch raises for such files. Code that catches torch's
    errors therefore catches this one, too. torch does not have this class.

    Example:
        >>> import io
        >>> fxpress.load(io.BytesIO(b"no archive"))
        Traceback (most recent call last):
            ...
        fxpress.ArchiveError: ...
    """

    __module__ = "fxpress"


class FormatError(ArchiveError, AssertionError):
    """An archive has a format that fxpress does not read."""


class MissingProgramError(ArchiveError, KeyError):
    """An archive does not contain a program of the expected name."""

    __str__ = Exception.__str__  # KeyError would quote the message


class OutOfMemoryError(Error, MemoryError):
    """An archive is not damaged, but its contents need more memory than is available."""


@contextmanager
def named_lack_of_memory(what: str) -> Iterator[None]:
    """Convert torch's RuntimeError for exhausted host memory into `OutOfMemoryError`."""
    try:
        yield
    except RuntimeError as e:
        if not any(text in str(e) for text in ("DefaultCPUAllocator", "Cannot allocate memory")):
            raise
        raise OutOfMemoryError(f"{what}: {e}") from None


@contextmanager
def archive_errors() -> Iterator[None]:
    """Convert errors that native code raises in the block into `ArchiveError`."""
    try:
        yield
    except _native.ArchiveError as e:
        raise ArchiveError(str(e)) from None
    except UnicodeDecodeError as e:
        raise ArchiveError(f"the name of a record is not UTF-8: {e}") from None
