"""Documents in which one list, dict or text is enlarged, and the time for reading them."""

from __future__ import annotations

import contextlib
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

# Texts that consist of one member of each pair, in order, have equal `std::hash`es in libstdc++.
_WORDS = """
    jIvUTlUyFByVWisZ/opEjCmvHlTREeOZV jPiWrRKTHOuifAdM/qEjMkSMahX16J54i
    HkgEbfpuLLgMgEvi/yATGwRqnnnOoTxbU uIYrNOqWnIHTaQrJ/PhvTncUd_WTSEz0w
    eqVeMiFQsEbQqIoB/hwcdUHMOHrJaYTmr ojKmjYnFkSFRvEUc/UOdHdwxyKcySFCrD
    IpQEWpxpajfWHHpD/NJnClfQiv0E3anYf TJhqXCcDGAnnfpqB/MhnwtYAZp8qgHKVf
    WujSxGUQfvhnqprC/smTbIbloeNmOw12L xVLJpEGpHmoddlTI/VDhnmPfcFN1yrqTF
    JChTMChVbSUArMCs/uETNkPiZFwIBJ55o cvPaHHAbXFTxMCzq/UARMqYmJDaDFbncV
    lLkHqpAqXelpuQhv/WoYeoGRmWgPvUiZY vLlGLKEWFdwCUWvS/bIEfnIRIpolkDz3j
"""
PAIRS = [each.split("/") for each in _WORDS.split()]
EQUAL_HASH = 2**61 - 1  # Python's hash of a multiple of it is 0
MOST = 2.3  # the maximum factor of the time if the size of a file doubles
LEAST = 0.2  # seconds; a file of the largest size that is read faster than this passes
SIZES = [1 << 17, 1 << 19]  # bytes
JSON = "JSON"  # the step into a text that is JSON
Place = tuple[Any, ...]


def same_hash(count: int) -> Iterator[str]:
    """Texts with the same hash."""
    return map("".join, itertools.islice(itertools.product(*PAIRS), count))


def same_in_python(count: int) -> Iterator[int]:
    """Return numbers with the same hash; few, because building a dict of them is slow."""
    return (EQUAL_HASH * number if number < 3000 else number for number in range(count))


def short_names(count: int) -> Iterator[str]:
    return (f"n{number}" for number in range(count))


def places(value: Any) -> Iterator[Place]:
    """Return the paths of lists, dicts and texts in a document; one of equivalent paths."""
    seen: set[Place] = set()
    waiting: list[tuple[Place, Place, Any]] = [((), (), value)]
    while waiting:
        place, kind, at = waiting.pop()
        if kind in seen or not isinstance(at, (list, dict, str)):
            continue
        if not isinstance(at, list):  # items of one list may have different fields
            seen.add(kind)
        if not isinstance(at, list) or (*kind, "[]") not in seen:
            seen.add((*kind, "[]"))
            yield place
        if isinstance(at, str) and at[:1] in ("[", "{"):
            waiting.append(((*place, JSON), (*kind, JSON), json.loads(at)))
        elif isinstance(at, list):
            waiting += [((*place, i), (*kind, *_tag(each)), each) for i, each in enumerate(at)]
        elif isinstance(at, dict):
            is_map = len(at) > 1 and len({_tag(each) for each in at.values()}) == 1
            waiting += [
                ((*place, key), (*kind, "*" if is_map else key), each) for key, each in at.items()
            ]


def _tag(value: Any) -> Place:
    """Return a key that differs between types of items of a list."""
    if isinstance(value, dict):
        return (tuple(sorted(map(str, value))),)
    return (type(value).__name__,)


def enlarged(value: Any, place: Place, size: int, keys: Callable[[int], Iterator[Any]]) -> Any:
    """Return a document that is about `size` bytes larger at a path."""
    if place[:1] == (JSON,):
        return json.dumps(enlarged(json.loads(value), place[1:], size, keys))
    if place:
        changed = value.copy()
        changed[place[0]] = enlarged(value[place[0]], place[1:], size, keys)
        return changed
    if isinstance(value, str):
        return (value or "a") * (size // max(len(value), 1))
    if isinstance(value, list):
        items = value or ["a"]
        return items * (size // len(json.dumps(items, default=str)) + 1)
    held = next(iter(value.values()), 0)
    one = len(json.dumps({str(next(keys(1))): held}, default=str))
    return value | dict.fromkeys(keys(size // one + 1), held)


def seconds(read: Callable[[], Any]) -> float:
    """The processor time of a call, which may raise an error."""
    start = time.process_time()
    with contextlib.suppress(Exception):
        read()
    return time.process_time() - start


def growth(reader: Callable[[int], Callable[[], Any]]) -> float:
    """Return by which factor the time grows if a file's size doubles; 0 if large files are fast.

    `reader(size)` creates a file, and returns a function that reads the file.
    """
    for size in SIZES:
        small, large = reader(size), reader(2 * size)
        one = seconds(small)
        if one < LEAST:
            continue
        if seconds(large) <= 2 * one:
            return 0.0
        found = []
        for _ in range(3):  # other processes may disturb one measurement
            times = [(seconds(small), seconds(large)) for _ in range(5)]
            one, two = (statistics.median(each) for each in zip(*times, strict=True))
            found.append(two / one)
            if found[-1] <= MOST:
                break
        return min(found)
    return 0.0
