"""Files that were made to do harm; importing the package fills CASES."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType

from tests.fuzz.hostile import expressions, numbers, pickles, strings, trees, zips
from tests.fuzz.hostile.cases import CASES, Case

__all__ = [
    "CASES",
    "Case",
    "expressions",
    "hostile_files",
    "numbers",
    "pickles",
    "strings",
    "trees",
    "zips",
]


@functools.cache
def hostile_files() -> Mapping[str, bytes]:
    """The files, by the names of their cases in sorted order; made once in a process."""
    return MappingProxyType({name: case.make() for name, case in sorted(CASES.items())})
