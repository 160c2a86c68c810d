"""Where commands write to, and how their errors name files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from fxpress._inspection.package import InspectionError
from fxpress._inspection.text import printable

_WIDE = 240  # characters of a line, where no terminal says


def console() -> Console:
    """Return the standard output; a file or a pipe gets long lines."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=_WIDE)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Return a block in which an InspectionError or OSError names the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    except InspectionError as error:
        raise type(error)(f"{path}: {printable(str(error))}") from error
