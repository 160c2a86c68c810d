"""Estimate the memory that Python's objects for a JSON text take, before they are made."""

from __future__ import annotations

import random
import re
import zlib
from collections import Counter

# Bytes of what a character of the text stands for, with the value and the slot that may follow it.
_OBJECT, _LIST, _ITEM = 200, 120, 64
_KEY = 120  # of a text that is a key, once, however many objects have it
_OTHERS = bytes(set(range(256)).difference(b"{[,:"))  # characters that are not counted
# Escapes are few in keys; that many at most, so that no text costs the matcher much memory.
_KEYS = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*){0,100})"\s*:')


_SLICES, _SLICE = 64, 1 << 14  # of a long text: how many parts are looked at, and their bytes


def objects_of(text: bytes, limit: int) -> int:
    """Return an estimate of the bytes that `json.loads` of a text takes; it is never far too low.

    Characters within strings count as if they were none, so that it may be too high. The text is
    decoded first, and a string with escapes is made in a buffer of its own.

    Args:
        text: the text.
        limit: what may be taken. Only a text that is near it is looked at closely.
    """
    marks = text.translate(None, _OTHERS)  # few, so that it takes less time to count them
    values = len(text) * (2 if b"\\" in text else 1)
    values += _OBJECT * marks.count(b"{") + _LIST * marks.count(b"[") + _ITEM * marks.count(b",")
    keys = marks.count(b":")
    if values <= limit < values + _KEY * keys:
        keys = _distinct_keys(text, keys)
    return values + _KEY * keys


def _distinct_keys(text: bytes, keys: int) -> int:
    """Return how many keys of a text are distinct; for a long text, an estimate from parts of it.

    Which parts are looked at depends on all of the text, so that nobody can hide keys from it.

    Args:
        text: the text.
        keys: how many it has.
    """
    if len(text) <= _SLICES * _SLICE:
        return len(set(_KEYS.findall(text)))
    places = random.Random(zlib.crc32(text))
    found = Counter[bytes]()
    for _ in range(_SLICES):
        start = places.randrange(len(text) - _SLICE)
        found.update(_KEYS.findall(text, start, start + _SLICE))
    once = sum(number == 1 for number in found.values())
    return len(found) + keys * once // max(found.total(), 1)
