"""The exceptions for archives that cannot be read."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._torch.serde import SerializeError


class ArchiveError(SerializeError, ValueError, zipfile.BadZipFile):
    """A file is damaged, or is not an archive. The message names the record that is at fault.

    It derives from each of the errors that torch's readers raise for such files, so that code that
    catches those errors catches it too. torch has no such class.

    Example:
        >>> import io
        >>> fxpress.load(io.BytesIO(b"no archive"))
        Traceback (most recent call last):
            ...
        fxpress.ArchiveError: ...
    """

    __module__ = "fxpress"


class FormatError(ArchiveError, AssertionError):
    """A file is an archive, but not of a format that fxpress reads."""


class MissingProgramError(ArchiveError, KeyError):
    """An archive has no program of that name."""

    __str__ = Exception.__str__  # a KeyError shows the text in quotes


class OutOfMemoryError(Error, MemoryError):
    """There is not enough memory for the contents that an archive declares. It is not damaged."""


@contextmanager
def named_lack_of_memory(what: str) -> Iterator[None]:
    """Raise torch's RuntimeError for a lack of memory of the host as `OutOfMemoryError`."""
    try:
        yield
    except RuntimeError as e:
        if "DefaultCPUAllocator" not in str(e):
            raise
        raise OutOfMemoryError(f"{what}: {e}") from None


@contextmanager
def archive_errors() -> Iterator[None]:
    """Raise the errors of the native code inside the block as `ArchiveError`."""
    try:
        yield
    except _native.ArchiveError as e:
        raise ArchiveError(str(e)) from None
    except UnicodeDecodeError as e:
        raise ArchiveError(f"the name of a record is not UTF-8: {e}") from None
