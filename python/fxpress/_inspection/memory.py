"""Estimate the memory that Python's objects for a JSON text take, before they are made."""

from __future__ import annotations

import re

# Bytes of what a character of the text stands for, with the value and the slot that may follow it.
_OBJECT, _LIST, _ITEM = 200, 120, 64
_KEY = 120  # of a text that is a key, once, however many objects have it
# Escapes are few in keys; that many at most, so that no text costs the matcher much memory.
_KEYS = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*){0,100})"\s*:')


def objects_of(text: bytes, limit: int) -> int:
    """Return an estimate of the bytes that `json.loads` of a text takes; it is never far too low.

    Characters within strings count as if they were none, so that it may be too high.

    Args:
        text: the text.
        limit: what may be taken. Only a text that is near it is looked at closely.
    """
    values = _OBJECT * text.count(b"{") + _LIST * text.count(b"[") + _ITEM * text.count(b",")
    keys = text.count(b":")
    if values <= limit < values + _KEY * keys:
        keys = _distinct_keys(text, (limit - values) // _KEY)
    return values + _KEY * keys


def _distinct_keys(text: bytes, most: int) -> int:
    """Return the number of distinct keys; counting stops behind the greatest number of interest."""
    found: set[bytes] = set()
    for match in _KEYS.finditer(text):
        found.add(match[1])
        if len(found) > most:
            break
    return len(found)
