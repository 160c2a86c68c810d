"""Find the journal of a graph while calls are noted. Needs none of torch's names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fxpress._tracking.reuse.journal import Journal

KEY = "_fxpress_journal"  # of an output graph


def open_journal(tx: Any) -> Journal | None:
    """Return the journal of a translator's graph while a call is noted; None at other times."""
    found: Journal | None = getattr(getattr(tx, "output", None), KEY, None)
    return found if found is not None and found.depth else None
