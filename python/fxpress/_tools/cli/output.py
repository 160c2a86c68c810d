"""Print the output of commands, and name the file in their errors."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fxpress._base.observing.text import printable
from fxpress._files.format.package import InspectionError

if TYPE_CHECKING:
    from rich.console import Console

    from fxpress._tools.inspect.hashes import Further

# rich is imported only to draw, because `hash` and `verify` in a pipe do not need it.
_WIDE = 1_000_000  # columns of a console that does not break lines
_LONGEST, _CUT = 199, " ... (fxpress --debug shows it all)"  # the maximum length of an error's line
_FOLDERS = re.compile(r"(?<!\S)/[^\s:]*/")  # the folders of an absolute path
_DELAY = 0.8  # seconds before a terminal shows the current action


class Allowed(NamedTuple):
    """Permissions from the options of a command, as arguments of `fxpress.load`."""

    allow_pickle: bool
    allow_operators: tuple[str, ...]


class _Wide:
    """Wraps a console: lines are not broken, and spaces at the ends of lines are removed."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def print(self, *objects: Any, **options: Any) -> None:
        with self._console.capture() as captured:
            self._console.print(*objects, **options)
        lines = captured.get().removesuffix("\n").split("\n")
        print(*(line.rstrip() for line in lines), sep="\n")


def console(*, is_wide: bool = False) -> Console | _Wide:
    """Return a console for the standard output; on a terminal it breaks lines unless `is_wide`."""
    from rich.console import Console

    made = Console(highlight=False)
    fits = made.is_terminal and not is_wide
    return made if fits else _Wide(Console(highlight=False, width=_WIDE))


@contextmanager
def working(action: str) -> Iterator[None]:
    """Run a block; if it is slow and the standard error is a terminal, show `action` on it."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    err = Console(stderr=True, highlight=False)
    status = err.status(Text(printable(action)))
    timer = threading.Timer(_DELAY, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


def registered_operators() -> Further | None:
    """Return a lookup of this process's registered operators; None if torch is not imported."""
    if "torch" not in sys.modules:
        return None
    from fxpress._tools.cli.loading import registered

    return registered


def shortened(line: str) -> str:
    """Shorten the line of an error if it is long: omit the folders of paths, then cut its end."""
    if len(line) > _LONGEST:
        line = _FOLDERS.sub(".../", line)
    return line if len(line) <= _LONGEST else line[: _LONGEST - len(_CUT)] + _CUT


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Run a block; add the file's path to an InspectionError or OSError in it."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise
    except InspectionError as error:
        raise type(error)(f"{path}: {printable(str(error))}") from error
