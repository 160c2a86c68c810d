"""The programs that hostile files are made of, as make_seeds has written them."""

from __future__ import annotations

import functools
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from tests.support.records import read_records

PATH = Path(__file__).with_name("seeds.zip")


@functools.cache
def frozen() -> Mapping[str, bytes]:
    """The archives, by the names of their programs."""
    with zipfile.ZipFile(PATH) as seeds:
        return MappingProxyType({name: seeds.read(name) for name in seeds.namelist()})


@functools.cache
def records_of(seed: str) -> Mapping[str, bytes]:
    """The records of a program."""
    return MappingProxyType(read_records(frozen()[seed]))
