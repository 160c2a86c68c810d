"""Whole files: they are loaded and used, or refused; nothing in them is run."""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import random
import re
from typing import Any

import torch
from torch._export.verifier import SpecViolationError

from fxpress import archive
from fxpress.serialize import SerializeError
from fxpress.split_module import split_module
from fxpress.unflatten import unflatten
from tests.fuzz.seeds import frozen
from tests.fuzz.targets import memory, timed
from tests.support import payloads, seed_programs, sentinel
from tests.support.records import read_records, write_records

# As torch reports an archive without a program, or with one of another type.
_OTHER_KINDS = "^'model'$|^Invalid archive format$|^Version .* has incorrect length$"
# A program takes the memory that it asks for when it is run; the machine shall last.
_MEMORY_OF_USES = 4 << 30  # bytes
_NUMBERS = (-1, 0, 1, 2, 7, 2**31, 2**62, 2**63, 2**64, 0.5, True, None, "", [], {})


def seeds() -> list[bytes]:
    return sorted(frozen().values(), key=len)


@functools.lru_cache(256)
def _records(data: bytes) -> dict[str, bytes]:
    return read_records(data)


def _place(value: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container in a JSON value, and a key or position in it; most often of a leaf."""
    at = value
    while True:
        key = rng.choice(list(at)) if isinstance(at, dict) else rng.randrange(len(at))
        if not isinstance(at[key], (dict, list)) or not at[key] or rng.random() < 0.1:
            return at, key
        at = at[key]


def _payload(text: str, rng: random.Random) -> str:
    """A text with a payload in it; if it is JSON itself, in a string of that."""
    shape = rng.choice(list(payloads.SHAPES.values()))
    if rng.random() < 0.3:
        return shape(text)
    found = payloads.slots(text)
    return str(payloads.with_payload(text, [rng.randrange(len(found))], shape))


def change(value: Any, rng: random.Random) -> None:
    """Change a value in a JSON document: a payload, a number, or the value at another location."""
    at, key = _place(value, rng)
    other, from_key = _place(value, rng)
    kind = rng.randrange(8)
    if kind < 4 and isinstance(at[key], str):
        at[key] = _payload(at[key], rng)
    elif kind == 4 and isinstance(at, dict):
        at[_payload(key, rng)] = at.pop(key)
    elif kind == 5:
        at[key] = rng.choice(_NUMBERS)
    elif kind == 6:
        del at[key]
    elif isinstance(at, list) and rng.random() < 0.5:
        at.append(copy.deepcopy(other[from_key]))
    else:
        at[key] = copy.deepcopy(other[from_key])


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """A change or two of the records of a frozen program."""
    rng = random.Random(seed)
    try:
        records = dict(_records(data))
        assert records
    except Exception:
        records = dict(_records(rng.choice(seeds())))
    for _ in range(rng.randint(1, 2)):
        names = list(records)
        name, other = rng.choice(names), rng.choice(names)
        if rng.random() < 0.05:
            records[name if rng.random() < 0.8 else f"{name}x"] = records[other]
            continue
        name = rng.choice([each for each in names if each.endswith(".json")] or names)
        with contextlib.suppress(ValueError, RecursionError, TypeError, IndexError):
            value = json.loads(records[name])
            change(value, rng)
            records[name] = json.dumps(value).encode()
    return write_records(records)[:max_size]


def _use(program: torch.export.ExportedProgram) -> None:
    """Use a program; errors are allowed, and the caller measures the time."""
    leaves: list[Any] = [torch.ones(3)] * 2
    uses = (
        lambda: repr(program),
        lambda: program.graph_module.code,
        lambda: program.module()(*leaves),
        lambda: unflatten(program).print_readable(print_output=False),
        lambda: unflatten(program)(*leaves),
        lambda: split_module(program.graph_module, None, lambda node: len(node.name) % 2).code,
        lambda: archive.save(program, io.BytesIO()),
    )
    for use in uses:
        with contextlib.suppress(Exception):
            use()


def _load(data: bytes) -> list[torch.export.ExportedProgram]:
    """The program, or none when the file is refused."""
    try:
        return [archive.load(io.BytesIO(data))]
    except (SerializeError, SpecViolationError):
        return []
    except (KeyError, AssertionError) as error:
        if not re.search(_OTHER_KINDS, str(error)):
            raise
        return []


def read(data: bytes) -> None:
    """Run one input of the fuzzer."""
    seed_programs.register()
    loaded: list[torch.export.ExportedProgram] = []
    with sentinel.listening() as heard:
        with memory.at_most(memory.promised(len(data))):
            timed.check(lambda: loaded.extend(_load(data)), timed.promised(len(data)))
        if loaded:
            with memory.limited(_MEMORY_OF_USES):
                _use(loaded[-1])
        assert not heard, heard[0]
