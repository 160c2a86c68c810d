"""`fxpress hash`: the hash of each program in a file."""

from __future__ import annotations

import json
from pathlib import Path

from fxpress._cli.output import naming, working
from fxpress._inspection.hashes import hash_programs
from fxpress._inspection.text import printable


def show_hashes(path: Path, include_state: bool, as_json: bool) -> None:
    """Print the hash of each program in a file, and its name.

    Raises:
        OSError: the file cannot be read.
        InspectionError: it is no file of exported programs, it is damaged, or it has something that
            only torch can hash.
    """
    with naming(path), working(f"hashing {path}"):
        hashes = hash_programs(path, include_state=include_state)
    if as_json:
        print(json.dumps(dict(hashes), indent=2))
        return
    for program, text in hashes:
        print(f"{text}  {printable(program)}")
