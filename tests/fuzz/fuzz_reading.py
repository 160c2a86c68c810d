"""Fuzzes what reads in Python, with atheris.

    pip install atheris
    python -m tests.fuzz.fuzz_reading TARGET -atheris_runs=1000000

`expressions`, `treespecs`, `programs` and `packages`: anything is read, or refused with a
SerializeError or an ArchiveError; nothing is imported, run or left behind. `guards`, `bounded`,
`files` and `folders`: what the modules of tests/fuzz/targets say.
"""

from __future__ import annotations

import codecs
import contextlib
import copy
import functools
import io
import json
import logging
import random
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris
import torch

with atheris.instrument_imports(include=["fxpress"], exclude=["fxpress._native"]):
    from fxpress import archive
    from fxpress._files.serde import expressions, treespecs
    from fxpress._files.serde.limits import Budget
    from fxpress.serialize import SerializedArtifact, SerializeError, deserialize
    from tests.fuzz.targets import bounded, files, folders, guards

COMPAT = Path(__file__).parents[1] / "compat" / "torch-2.13.0-exportdb.zip"
EXPRESSIONS = (
    "Symbol('s77', positive=True, integer=True)",
    "Add(Mul(Integer(2), Symbol('s0', integer=True)), Integer(-3))",
    "Max(1, FloorDiv(Symbol('u0', integer=True), Integer(4)))",
    "Eq(Mod(Symbol('s1', positive=True, integer=True), Integer(8)), Integer(0))",
    "Float('1.5', precision=53)",
)
TREESPECS = (
    '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": null, '
    '"context": null, "children_spec": []}]}]',
    '[1, {"type": "builtins.dict", "context": "[\\"a\\"]", "children_spec": [{"type": null, '
    '"context": null, "children_spec": []}]}]',
    '[1, {"type": "collections.defaultdict", "context": "{}", "children_spec": []}]',
)


# As torch says that an archive has no program, or one of another version.
OTHER_KINDS = "^'model'$|^Invalid archive format$|^Version .* has incorrect length$"


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass" if data.isascii() else "replace")


def read_expression(data: bytes) -> None:
    expressions.parse(text_of(data), {})


def read_treespec(data: bytes) -> None:
    treespecs.load_treespec(text_of(data), Budget(None, len(data)))


def read_program(data: bytes) -> None:
    deserialize(SerializedArtifact(data, b"", b"", b""))


def read_archive(data: bytes) -> None:
    try:
        archive.load(memoryview(data))
    except (KeyError, AssertionError) as error:
        if not re.search(OTHER_KINDS, str(error)):
            raise


class Shared(torch.nn.Module):
    """Weights, a view of one, a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4, 3))
        self.register_buffer("row", self.weight.data[1])
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight + self.row * self.constant


@functools.cache
def archives() -> list[bytes]:
    buffer = io.BytesIO()
    program = torch.export.export(Shared(), (torch.ones(2, 4),))
    archive.save(program, buffer, extra_files={"notes": "n"})
    return [buffer.getvalue()]


@functools.cache
def frozen_programs() -> list[bytes]:
    with zipfile.ZipFile(io.BytesIO(COMPAT.read_bytes())) as archive:
        names = (n for n in archive.namelist() if n.endswith("/exported_program"))
        return sorted((archive.read(n) for n in names), key=len)[:40]


EDGES: tuple[Any, ...] = (
    None,
    True,
    -1,
    2**63,
    2**64,
    1.5,
    "",
    "x",
    "\ud800",
    [],
    {},
    [[]],
    "None",
)


def places(tree: Any, rng: random.Random) -> tuple[Any, Any]:
    """A container somewhere in a JSON value, and a key or position in it."""
    at: Any = tree
    while True:
        keys = list(at) if isinstance(at, dict) else range(len(at))
        key = rng.choice(keys)
        if not isinstance(at[key], (dict, list)) or not at[key] or rng.random() < 0.1:
            return at, key
        at = at[key]


def change(tree: Any, rng: random.Random) -> None:
    """Change a value in a JSON document: another value, one from elsewhere, one less or more."""
    at, key = places(tree, rng)
    other, from_key = places(tree, rng)
    match rng.randrange(6):
        case 0:
            del at[key]
        case 1:
            at[key] = rng.choice(EDGES)
        case 2 if isinstance(at, list):
            at.append(copy.deepcopy(at[key]))
        case 3 if isinstance(at, dict):
            at[rng.choice(list(other) if isinstance(other, dict) else ["x"])] = at.pop(key)
        case 4 if isinstance(at[key], str) and at[key]:
            cut = rng.randrange(len(at[key]))
            at[key] = at[key][:cut] + rng.choice("a0_.()[],;'\"") + at[key][cut + 1 :]
        case _:
            at[key] = copy.deepcopy(other[from_key])


def mutate_program(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate a program; usually the result is valid JSON, so that code after the reader runs."""
    rng = random.Random(seed)
    try:
        tree = json.loads(data.decode())
        if rng.random() < 0.1 or not tree:
            raise ValueError("now and then any bytes")
        for _ in range(rng.randint(1, 3)):
            change(tree, rng)
        return json.dumps(tree).encode()[:max_size]
    except (ValueError, TypeError, IndexError, RecursionError):
        return bytes(atheris.Mutate(data, max_size))


def mutate_archive(data: bytes, max_size: int, seed: int) -> bytes:
    """A zip file stays one, most of the time, and JSON in it JSON."""
    rng = random.Random(seed)
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as file:
            records = {name: file.read(name) for name in file.namelist()}
        if rng.random() < 0.1 or not records:
            raise ValueError("now and then any bytes")
    except Exception:
        return bytes(atheris.Mutate(data, max_size))
    name, other = rng.choice(list(records)), rng.choice(list(records))
    match rng.randrange(8):
        case 0:
            del records[name]
        case 1:
            records[name] = records[other]
        case 2:
            records[rng.choice([f"{name}x", f"../{name}", f"/{name}", "x", f"{other}/y"])] = (
                records.pop(name)
            )
        case _:
            if not name.endswith(".json"):
                name = rng.choice([each for each in records if each.endswith(".json")] or [name])
            records[name] = mutate_program(records[name], max_size, rng.randrange(1 << 30))
    buffer = io.BytesIO()
    kind = zipfile.ZIP_DEFLATED if rng.random() < 0.1 else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind) as file:
        for each, content in records.items():
            file.writestr(each, content)
    return buffer.getvalue()[:max_size]


MUTATORS = {
    "programs": mutate_program,
    "treespecs": mutate_program,
    "packages": mutate_archive,
    "guards": guards.mutate,
    "bounded": bounded.mutate,
    "files": files.mutate,
    "folders": folders.mutate,
}
TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "expressions": (read_expression, lambda: [e.encode() for e in EXPRESSIONS]),
    "treespecs": (read_treespec, lambda: [t.encode() for t in TREESPECS]),
    "programs": (read_program, frozen_programs),
    "packages": (read_archive, archives),
    "guards": (guards.read, guards.seeds),
    "bounded": (bounded.read, bounded.seeds),
    "files": (files.read, files.seeds),
    "folders": (folders.read, folders.seeds),
}
USING = {"files", "folders"}  # what is made of an input is used, which imports what it needs


def main() -> None:
    name = sys.argv.pop(1)
    read, seeds = TARGETS[name]
    logging.disable(logging.CRITICAL)
    for seed in seeds():  # torch imports some of its parts when they are first needed
        with contextlib.suppress(Exception):
            read(seed)
    for codec in (
        "cp437",
        "unicode_escape",
        "raw_unicode_escape",
    ):  # of zip files, escapes, pickles
        codecs.lookup(codec)
    before = set(sys.modules)

    def one_input(data: bytes) -> None:
        try:
            read(data)
        except (SerializeError, archive.ArchiveError):
            pass
        except Exception as error:
            if not type(error).__module__.startswith("torch"):  # its verifier found it
                raise
        if name in USING:
            return
        new = {
            m for m in set(sys.modules) - before if not m.startswith(("torch", "sympy", "atheris"))
        }
        assert not new, f"imported {new}"

    corpus = Path(__file__).parent / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for position, seed in enumerate(seeds()):
        path = corpus / f"seed{position}"
        if not path.exists():
            path.write_bytes(seed)
    options = {"custom_mutator": MUTATORS[name]} if name in MUTATORS else {}
    atheris.Setup([sys.argv[0], *sys.argv[1:], str(corpus)], one_input, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
