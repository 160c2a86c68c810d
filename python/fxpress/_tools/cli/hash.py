"""`fxpress hash`: print the hash of each program in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fxpress._base.errors import Error
from fxpress._base.observing.text import printable
from fxpress._tools.cli.output import naming, registered_operators, working
from fxpress._tools.inspect.hashes import hash_programs


def show_hashes(
    paths: Sequence[Path], include_state: bool, allow_operators: Sequence[str], as_json: bool
) -> list[Exception]:
    """Print the hash of each program in files; return an error for each file without a hash."""
    failures: list[Exception] = []
    found: dict[str, dict[str, str]] = {}
    further = registered_operators()
    for path in paths:
        try:
            with naming(path), working(f"hashing {path}"):
                hashes = dict(
                    hash_programs(
                        path,
                        include_state=include_state,
                        further=further,
                        allow_operators=allow_operators,
                    )
                )
        except (Error, OSError) as error:
            failures.append(error)
            continue
        found[str(path)] = hashes
        for program, text in hashes.items() if not as_json else ():
            name = f"{path}: {program}" if len(hashes) > 1 else str(path)
            print(f"{text}  {printable(name)}")
    if as_json and found:
        print(json.dumps(found, indent=2))
    return failures
