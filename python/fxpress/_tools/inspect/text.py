"""Texts and numbers as people read them."""

from __future__ import annotations

from fxpress._base.observing.text import bytes_text

__all__ = ["bytes_text", "printable"]


def printable(text: str) -> str:
    """Return a text of a file; what would move the cursor or change colours is escaped."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape", "surrogatepass").decode()
        for each in text
    )
