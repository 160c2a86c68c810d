"""A brief run, without atheris, of the fuzz targets that use what they load."""

from __future__ import annotations

import random
from types import ModuleType

import pytest

from tests.fuzz.targets import bounded, files, folders, guards

SEED = 20
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # torch warns of what the files make it do
    pytest.mark.usefixtures("seeds_registered"),
]
RUNS = {guards: 2000, bounded: 200, files: 100, folders: 60}


@pytest.mark.parametrize("target", RUNS, ids=lambda module: module.__name__.rpartition(".")[2])
def test_target(target: ModuleType) -> None:
    rng = random.Random(SEED)
    seeds = target.seeds()
    for _ in range(RUNS[target]):
        data = rng.choice(seeds)
        for _ in range(rng.randrange(4)):
            data = target.mutate(data, 1 << 16, rng.randrange(1 << 30))
        target.read(data)
