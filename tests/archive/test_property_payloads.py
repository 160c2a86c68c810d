"""A payload in any string of a file never runs, whatever is done with what was loaded.

Every payload in every kind of string:
FXPRESS_CASES=all pytest tests/archive/test_property_payloads.py
"""

from __future__ import annotations

import contextlib
import copy
import io

import pytest
import torch
from torch._export.verifier import SpecViolationError

from fxpress import archive
from fxpress.serialize import SerializeError
from tests.fuzz.hostile.cases import documents_of, written
from tests.support import payloads, seed_programs, sentinel, uses
from tests.support.sampled import sampled

pytestmark = [
    pytest.mark.slow("generated cases"),
    pytest.mark.filterwarnings("ignore"),  # torch warns of what the files make it do
    pytest.mark.usefixtures("seeds_registered"),
]
SEED = 20
OF_EACH_KIND = 2  # strings with one label that get a separate payload
SAMPLE = 10  # cases of a program in the ordinary run
DEEP = 1  # of the loaded programs that are also compiled and exported again


def load(data: bytes) -> torch.export.ExportedProgram | None:
    try:
        return archive.load(io.BytesIO(data))
    except (SerializeError, SpecViolationError):
        return None


def cases(name: str) -> list[tuple[str, list[int], str]]:
    """Label of the strings, their positions, and the shape of the payload."""
    found = payloads.groups(documents_of(name), OF_EACH_KIND)
    return [(label, at, shape) for label, at in found.items() for shape in payloads.SHAPES]


@pytest.mark.parametrize("name", sorted(seed_programs.LEAVES))
def test_no_payload_runs(name: str) -> None:
    documents = documents_of(name)
    leaves = seed_programs.LEAVES[name]()
    deep = 0
    for label, positions, shape in sampled(cases(name), SAMPLE, SEED):
        changed = payloads.with_payload(copy.deepcopy(documents), positions, payloads.SHAPES[shape])
        with sentinel.listening() as heard:
            if set(changed) == set(documents) and (program := load(written(name, changed))):
                deep += 1
                ways = uses.USES if deep <= DEEP else uses.QUICK
                with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
                    uses.use(program, leaves, ways)
            assert not heard, f"{label}, {shape}: {heard[0]}"


def test_payloads_are_code_where_texts_become_source() -> None:
    """Without this the tests above would show nothing."""
    sources = {
        "expression": "{}",
        "default": "def f({}): pass",
        "single quote": "'{}'",
        "double quote": '"{}"',
        "line in a body": "def f():\n    # {}\n    pass",
        "end of a signature": "def f(self, {}): pass",
        "key": "f(L['{}'])",
        "decorator": "{}\n",
        "f-string": 'f"{}"',
    }
    for shape, source in sources.items():
        with sentinel.listening() as heard, contextlib.suppress(Exception):
            exec(source.format(payloads.SHAPES[shape]("x")), {})
        assert heard, shape


def test_programs_are_what_they_were() -> None:
    """The files that get payloads load, run and are used without one."""
    for name, leaves in seed_programs.LEAVES.items():
        program = load(written(name, {}))
        assert program is not None, name
        args, kwargs = uses.arguments_of(program, leaves())
        program.module()(*args, **kwargs)
