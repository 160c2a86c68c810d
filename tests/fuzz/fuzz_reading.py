"""Fuzzes what reads texts in Python, with atheris: expressions, tree specs and whole programs.

    pip install atheris
    python -m tests.fuzz.fuzz_reading expressions|treespecs|programs -atheris_runs=1000000

Any text is read, or refused with a SerializeError; nothing is imported, run or left behind.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

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


TARGETS: dict[str, tuple[Callable[[bytes], None], Callable[[], list[bytes]]]] = {
    "expressions": (read_expression, lambda: [e.encode() for e in EXPRESSIONS]),
    "treespecs": (read_treespec, lambda: [t.encode() for t in TREESPECS]),
    "programs": (read_program, frozen_programs),
}


def main() -> None:
    name = sys.argv.pop(1)
    read, seeds = TARGETS[name]
    logging.disable(logging.CRITICAL)
    before: set[str] = set()

    def one_input(data: bytes) -> None:
        before.update(() if before else sys.modules)
        try:
            read(data)
        except SerializeError:
            pass
        except Exception as error:
            if not type(error).__module__.startswith("torch"):  # its verifier found it
                raise
        new = {m for m in set(sys.modules) - before if not m.startswith(("torch", "sympy"))}
        assert not new, f"imported {new}"

    corpus = Path(__file__).parent / "corpus" / name
    corpus.mkdir(parents=True, exist_ok=True)
    for position, seed in enumerate(seeds()):
        path = corpus / f"seed{position}"
        if not path.exists():
            path.write_bytes(seed)
    atheris.Setup([sys.argv[0], *sys.argv[1:], str(corpus)], one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
