"""Fuzzes what reads texts in Python, with atheris: expressions, tree specs and whole programs.

    pip install atheris
    python -m tests.fuzz.fuzz_reading expressions|treespecs|programs -atheris_runs=1000000

Any text is read, or refused with a SerializeError; nothing is imported, run or left behind.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import io
import json
import logging
import random
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(include=["fxpress"], exclude=["fxpress._native"]):
    from fxpress._serde import expressions, treespecs
    from fxpress.serialize import SerializedArtifact, SerializeError, deserialize

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


def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogatepass" if data.isascii() else "replace")


def read_expression(data: bytes) -> None:
    expressions.parse(text_of(data), {})


def read_treespec(data: bytes) -> None:
    treespecs.load_treespec(text_of(data))


def read_program(data: bytes) -> None:
    deserialize(SerializedArtifact(data, b"", b"", b""))


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
    """Another value, one from elsewhere, one less or one more at a place of a JSON value."""
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
    """JSON stays JSON, most of the time: so that what is behind the reader is reached."""
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


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "expressions": (read_expression, lambda: [e.encode() for e in EXPRESSIONS]),
    "treespecs": (read_treespec, lambda: [t.encode() for t in TREESPECS]),
    "programs": (read_program, frozen_programs),
}


def main() -> None:
    name = sys.argv.pop(1)
    read, seeds = TARGETS[name]
    logging.disable(logging.CRITICAL)
    for seed in seeds():  # torch imports some of its parts when they are first needed
        with contextlib.suppress(Exception):
            read(seed)
    before = set(sys.modules)

    def one_input(data: bytes) -> None:
        try:
            read(data)
        except SerializeError:
            pass
        except Exception as error:
            if not type(error).__module__.startswith("torch"):  # its verifier found it
                raise
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
    options = {"custom_mutator": mutate_program} if name == "programs" else {}
    atheris.Setup([sys.argv[0], *sys.argv[1:], str(corpus)], one_input, **options)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
