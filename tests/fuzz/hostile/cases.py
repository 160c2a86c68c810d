"""Hostile files: how they are built and read, and the expected outcome."""

from __future__ import annotations

import copy
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fxpress import archive
from tests.fuzz import seeds
from tests.support.records import write_records

MODEL = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"
CONSTANTS = "archive/data/constants/model_constants_config.json"
SAMPLES = "archive/data/sample_inputs/model.pt"

Read = Callable[[bytes], Any]


@dataclass(frozen=True)
class Case:
    """A hostile file.

    Attributes:
        name: unique among all cases.
        make: the bytes; the same ones each time.
        wanted: "refused", "loads" or "either", where what the file says is only bad for some use.
        seed: the program that it was; says with what it can be called.
        read: what it is given to.
        message: a pattern of the error's text, where the text matters; "" elsewhere.
    """

    name: str
    make: Callable[[], bytes]
    wanted: str
    seed: str
    read: Read
    message: str = ""


CASES: dict[str, Case] = {}


def read_archive(data: bytes) -> Any:
    return archive.load(io.BytesIO(data))


def read_contents(data: bytes) -> Any:
    return archive.load_pt2(io.BytesIO(data))


def add(
    name: str,
    make: Callable[[], bytes],
    wanted: str,
    seed: str = "keys",
    read: Read = read_archive,
    message: str = "",
) -> None:
    """Add a case; names are unique."""
    assert wanted in ("refused", "loads", "either"), wanted
    assert name not in CASES, name
    CASES[name] = Case(name, make, wanted, seed, read, message)


def hostile(
    wanted: str, seed: str = "keys", read: Read = read_archive, message: str = ""
) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Add a function that creates a file; its name states the attack."""

    def register(make: Callable[[], bytes]) -> Callable[[], bytes]:
        module = make.__module__.rpartition(".")[2]
        add(f"{module}-{make.__name__.replace('_', '-')}", make, wanted, seed, read, message)
        return make

    return register


def records_of(seed: str) -> dict[str, bytes]:
    """The records of a frozen program."""
    return dict(seeds.records_of(seed))


def documents_of(seed: str) -> dict[str, Any]:
    """Return the JSON records of a file, as values."""
    return {
        name: json.loads(content)
        for name, content in records_of(seed).items()
        if name.endswith(".json")
    }


def written(seed: str, changed: dict[str, Any]) -> bytes:
    """The program with other records; values are written as JSON, None leaves a record out."""
    records: dict[str, Any] = records_of(seed) | changed
    return write_records(
        {
            name: value if isinstance(value, bytes) else json.dumps(value).encode()
            for name, value in records.items()
            if value is not None
        }
    )


def edited(seed: str, edit: Callable[[Any], None], record: str = MODEL) -> bytes:
    """The program with something else in one of its JSON records."""
    value = copy.deepcopy(documents_of(seed)[record])
    edit(value)
    return written(seed, {record: value})
