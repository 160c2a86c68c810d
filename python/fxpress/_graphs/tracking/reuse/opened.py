"""Find the journal of a graph while calls are noted. Needs none of torch's names."""

from __future__ import annotations

from typing import Any

KEY = "_fxpress_journal"  # of an output graph


def open_journal(tx: Any) -> Any:
    """Return the journal of a translator's graph while a call is noted; None at other times."""
    found = getattr(getattr(tx, "output", None), KEY, None)
    return found if found is not None and found.depth else None


def note_once(tx: Any, what: str) -> None:
    """Note what only one module, or one moment, gives: no call is like one with it."""
    journal = open_journal(tx)
    if journal is not None:
        journal.once.append(what)
