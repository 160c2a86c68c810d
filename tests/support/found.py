"""What `fxpress verify` finds wrong with a file."""

from __future__ import annotations

from pathlib import Path

from fxpress._tools.inspect.verification import Fault, check_file


def find_faults(path: Path) -> list[Fault]:
    """Return the faults, without notes."""
    return [fault for fault in check_file(path) if not fault.is_note]
