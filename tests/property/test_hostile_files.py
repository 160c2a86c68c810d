"""Files that were made to do harm: each is refused, or loads and does nothing when it is used.

FXPRESS_HOSTILE=all pytest tests/property/test_hostile_files.py  # all strings
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import pytest

from fxpress.serialize import SerializeError
from tests.fuzz.hostile import CASES, Case
from tests.fuzz.make_hostile import frozen
from tests.support import seed_programs, sentinel, uses
from tests.support.sampled import sampled

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of what the files make it do
SEED = 20  # of the sample that the ordinary run takes
SAMPLE = 30  # files


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    seed_programs.register()
    yield
    logging.disable(logging.NOTSET)


def test_the_generator_makes_the_corpus_again() -> None:
    files = frozen()
    assert sorted(files) == sorted(CASES)
    changed = [name for name, case in CASES.items() if case.make() != files[name]]
    assert not changed


def check(case: Case) -> None:
    with sentinel.listening() as heard:
        try:
            program = case.read(case.make())
        except SerializeError:
            program = None
            assert case.wanted != "loads", f"{case.name} was refused"
        else:
            assert case.wanted != "refused", f"{case.name} was loaded"
        if program is not None:
            leaves = seed_programs.LEAVES[case.seed]()
            with contextlib.redirect_stdout(None):
                uses.use(program, leaves, uses.QUICK)
        assert not heard, f"{case.name}: {heard[0]}"


STRINGS = sorted(name for name in CASES if name.startswith("strings-"))


@pytest.mark.parametrize("name", sampled(STRINGS, SAMPLE, SEED))
def test_file(name: str) -> None:
    check(CASES[name])
