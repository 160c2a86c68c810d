"""What a look at a file finds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Fault(NamedTuple):
    """Something that is wrong with a file, or that a load may stumble over.

    Attributes:
        record: the record that it is in; empty for the file as a whole.
        text: what it is.
        is_note: nothing is wrong with the file, but it takes something to load it: a library, a
            permission, another file.
    """

    record: str
    text: str
    is_note: bool = False


Found = Iterator[tuple[str, bool]]  # texts, and whether they are notes
