"""What comes of each hostile file, by gate and limits together, as it was when it was added.

    python -m tests.fuzz.hostile.outcomes

Adds the outcomes of new files; those that are there stay.
"""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path
from typing import Any

from fxpress import _native
from fxpress.archive import ArchiveError, LimitError
from fxpress.serialize import SerializeError
from tests.fuzz.hostile import CASES, Case
from tests.support import seed_programs

PATH = Path(__file__).parents[1] / "corpus" / "hostile_outcomes.json"
LOADS = "loads"
DOCUMENTED = (SerializeError, ArchiveError)


def read_case(case: Case) -> tuple[str, Any]:
    """Return the outcome of a file, and the result or the error."""
    try:
        return LOADS, case.read(case.make())
    except LimitError as error:
        return f"LimitError {error.limit}", error
    except DOCUMENTED as error:
        public = next(cls for cls in type(error).__mro__ if cls.__module__ == "fxpress")
        return f"{public.__name__}{_rule(str(error))}", error


def _rule(message: str) -> str:
    """The rule of the gate that a message is about."""
    faults = {fault for fault in _native.gate_rules().values() if message.endswith(f" {fault}")}
    return f" {max(faults, key=len)}" if faults else ""


def frozen_outcomes() -> dict[str, str]:
    """By the names of the cases; `|` separates outcomes that depend on the machine's speed."""
    outcomes: dict[str, str] = json.loads(PATH.read_text())
    return outcomes


def main() -> None:
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    seed_programs.register()
    outcomes = frozen_outcomes() if PATH.exists() else {}
    for name, case in CASES.items():
        if name not in outcomes:
            outcomes[name] = read_case(case)[0]
    PATH.write_text(json.dumps(outcomes, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
