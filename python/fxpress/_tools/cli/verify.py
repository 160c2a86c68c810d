"""`fxpress verify`: report all faults of a file."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

from fxpress._base.observing.progress import reporting
from fxpress._base.observing.text import printable
from fxpress._tools.cli.output import Allowed, naming, registered_operators, shortened, working
from fxpress._tools.inspect.verification import Fault, check_file

_LOAD = "fxpress.load: "  # the prefix of an error that a load raised


def show_faults(path: Path, loads: bool, allowed: Allowed, as_json: bool) -> int:
    """Print a file's faults, and what loading it requires; return 1 if there is a fault, else 0."""
    with (
        naming(path),
        reporting(None, "checking", path.stat().st_size) as bar,
        working(f"checking {path}") if bar is None else nullcontext(),
    ):
        found = check_file(path, bar, registered_operators(), allowed.allow_operators)
    if loads and all(each.is_note for each in found):
        with working(f"loading {path}"):
            found += _faults_of_a_load(path, allowed)
    if as_json:
        print(json.dumps([each._asdict() for each in found], indent=2))
    else:
        for record, text, is_note in found:
            message = f"{record + ': ' if record else ''}{text}"
            line = printable(f"{path}: {'note: ' if is_note else ''}{message}")
            print(shortened(line) if message.startswith(_LOAD) else line)
        if all(each.is_note for each in found):
            print(printable(f"{path}: no fault was found"))
    return 0 if all(each.is_note for each in found) else 1


def _faults_of_a_load(path: Path, allowed: Allowed) -> list[Fault]:
    """Load a file onto the meta device; return its error, if there is one."""
    import fxpress  # these imports import torch
    from fxpress._tools.cli.loading import text_of

    try:
        fxpress.load(path, load_weights=False, **allowed._asdict())
    except Exception as error:  # a load may raise any type
        return [Fault("", _LOAD + text_of(error))]
    return []
