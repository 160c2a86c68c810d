"""`fxpress verify`: everything that is wrong with a file."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

from fxpress._base.observing.progress import reporting
from fxpress._tools.cli.output import naming, working
from fxpress._tools.inspect.findings import Fault
from fxpress._tools.inspect.text import printable
from fxpress._tools.inspect.verification import look_at


def show_faults(path: Path, loads: bool, as_json: bool) -> int:
    """Print what is wrong with a file, and what a load takes; return 0, or 1 for a fault.

    Args:
        path: the file.
        loads: load a file without a fault, with torch; what that says is a fault too.
        as_json: print a list of objects.

    Raises:
        OSError: the file cannot be read.
    """
    with (
        naming(path),
        reporting(None, "checking", path.stat().st_size) as bar,
        working(f"checking {path}") if bar is None else nullcontext(),
    ):
        found = look_at(path, bar)
    if loads and all(each.is_note for each in found):
        with working(f"loading {path}"):
            found += _said_by_a_load(path)
    if as_json:
        print(json.dumps([each._asdict() for each in found], indent=2))
    else:
        for record, text, is_note in found:
            said = f"{record + ': ' if record else ''}{text}"
            print(printable(f"{path}: {'note: ' if is_note else ''}{said}"))
        if all(each.is_note for each in found):
            print(printable(f"{path}: no fault was found"))
    return 0 if all(each.is_note for each in found) else 1


def _said_by_a_load(path: Path) -> list[Fault]:
    import fxpress  # imports torch

    try:
        fxpress.load(path)
    except Exception as error:  # of each kind that a load may raise
        return [Fault("", f"fxpress.load: {str(error).partition(chr(10))[0]}")]
    return []
