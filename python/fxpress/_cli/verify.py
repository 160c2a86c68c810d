"""`fxpress verify`: everything that is wrong with a file."""

from __future__ import annotations

import json
from pathlib import Path

from fxpress._cli.output import naming
from fxpress._inspection.text import printable
from fxpress._inspection.verification import find_faults
from fxpress._observing.progress import reporting


def show_faults(path: Path, as_json: bool) -> int:
    """Print what is wrong with a file; return 0, or 1 when something is.

    Raises:
        OSError: the file cannot be read.
    """
    with naming(path), reporting(None, "checking", path.stat().st_size) as bar:
        faults = find_faults(path, bar)
    if as_json:
        print(json.dumps([fault._asdict() for fault in faults], indent=2))
        return 1 if faults else 0
    for record, text in faults:
        print(printable(f"{path}: {record + ': ' if record else ''}{text}"))
    if not faults:
        print(printable(f"{path}: no fault was found"))
    return 1 if faults else 0
