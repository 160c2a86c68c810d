"""`fxpress verify`: all faults of a file."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

from fxpress._base.observing.progress import reporting
from fxpress._base.observing.text import printable
from fxpress._tools.cli.output import naming, working
from fxpress._tools.inspect.verification import Fault, check_file


def show_faults(path: Path, loads: bool, as_json: bool) -> int:
    """Print the faults of a file, and what a load needs; return 0, or 1 for a fault."""
    with (
        naming(path),
        reporting(None, "checking", path.stat().st_size) as bar,
        working(f"checking {path}") if bar is None else nullcontext(),
    ):
        found = check_file(path, bar)
    if loads and all(each.is_note for each in found):
        with working(f"loading {path}"):
            found += _faults_of_a_load(path)
    if as_json:
        print(json.dumps([each._asdict() for each in found], indent=2))
    else:
        for record, text, is_note in found:
            said = f"{record + ': ' if record else ''}{text}"
            print(printable(f"{path}: {'note: ' if is_note else ''}{said}"))
        if all(each.is_note for each in found):
            print(printable(f"{path}: no fault was found"))
    return 0 if all(each.is_note for each in found) else 1


def _faults_of_a_load(path: Path) -> list[Fault]:
    """Load a file onto the meta device; the records of weights were checked before."""
    import fxpress  # imports torch

    try:
        fxpress.load(path, load_weights=False)
    except Exception as error:  # of each type that a load may raise
        return [Fault("", f"fxpress.load: {str(error).partition(chr(10))[0]}")]
    return []
