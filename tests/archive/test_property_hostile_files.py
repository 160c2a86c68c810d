"""Files that were made to do harm: each is refused, or loads and does nothing when it is used.

FXPRESS_CASES=all pytest tests/archive/test_property_hostile_files.py  # all of them
"""

from __future__ import annotations

import contextlib

import pytest
import torch

from tests.fuzz.hostile import CASES
from tests.fuzz.hostile.outcomes import LOADS, frozen_outcomes, read_case
from tests.support import seed_programs, sentinel, uses
from tests.support.sampled import sampled

pytestmark = [
    pytest.mark.slow("generated cases"),
    pytest.mark.filterwarnings("ignore"),  # torch warns of what the files make it do
    pytest.mark.usefixtures("seeds_registered"),
]
SEED = 20  # of the samples that the ordinary run takes
READ = 40  # files of a family
USED = 16  # files that load


def test_every_file_has_an_outcome_that_its_case_wants() -> None:
    outcomes = frozen_outcomes()
    assert sorted(outcomes) == sorted(CASES)
    wanted = {"refused": False, "loads": True}
    wrong = [
        name
        for name, case in CASES.items()
        if case.wanted in wanted and wanted[case.wanted] != (outcomes[name] == LOADS)
    ]
    assert not wrong


FAMILIES = sorted({name.partition("-")[0] for name in CASES})


@pytest.mark.parametrize("family", FAMILIES)
def test_outcomes(family: str) -> None:
    names = [name for name in sorted(CASES) if name.startswith(f"{family}-")]
    outcomes = frozen_outcomes()
    found = {}
    for name in sampled(names, READ, SEED):
        with sentinel.listening() as heard:
            found[name], _ = read_case(CASES[name])
        assert not heard, f"{name}: {heard[0]}"
    wrong = {name: each for name, each in found.items() if each not in outcomes[name].split(" | ")}
    assert not wrong


LOADED = sorted(name for name, outcome in frozen_outcomes().items() if outcome == LOADS)
DEEP = {"strings-many-guards": "torch compiles its 50,000 guards once for each use"}
USED_ONES = [
    pytest.param(name, marks=pytest.mark.deep(DEEP[name])) if name in DEEP else name
    for name in sampled(LOADED, USED, SEED)
]


@pytest.mark.parametrize("name", USED_ONES)
def test_what_loads_does_nothing_when_it_is_used(name: str) -> None:
    case = CASES[name]
    with sentinel.listening() as heard:
        _, read = read_case(case)
        if isinstance(read, torch.export.ExportedProgram):
            with contextlib.redirect_stdout(None):
                uses.use(read, seed_programs.LEAVES[case.seed](), uses.QUICK)
        assert not heard, heard[0]
