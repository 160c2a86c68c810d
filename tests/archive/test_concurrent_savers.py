"""Threads and processes that save to one path while others load it."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

import fxpress
from fxpress import archive

pytestmark = pytest.mark.slow("separate processes")

SAVERS = 3
TURNS = 15


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1000))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(Model(), (torch.ones(1000),))


def numbered(program: Any, number: int) -> Any:
    made = copy.deepcopy(program)
    with torch.no_grad():
        made.state_dict["weight"].fill_(number)
    return made


def value_of(path: Path) -> int:
    """Which program is there; its weights are of the same save."""
    extra: dict[str, str] = {}
    program = archive.load(path, extra_files=extra)
    values = program.state_dict["weight"].unique().tolist()
    assert values == [float(extra["number"])]
    return int(extra["number"])


def save(program: Any, path: Path, number: int, weights: Any) -> None:
    archive.save(program, path, extra_files={"number": str(number)}, weights=weights)


def assert_only_what_is_needed(path: Path, weights: str) -> None:
    left = sorted(os.listdir(path.parent))
    beside = [name for name in left if name.endswith(".safetensors")]
    assert len(beside) == (weights == "safetensors"), left
    assert [name for name in left if name not in beside] == [path.name]


@pytest.mark.parametrize("weights", ["inline", "safetensors"])
def test_threads(program: Any, tmp_path: Path, weights: str) -> None:
    path = tmp_path / "model.pt2"
    programs = [numbered(program, number) for number in range(SAVERS)]
    save(programs[0], path, 0, weights)
    done = threading.Event()

    def saves(number: int) -> None:
        for _ in range(TURNS):
            save(programs[number], path, number, weights)

    def loads() -> int:
        count = 0
        while not done.is_set():
            assert value_of(path) in range(SAVERS)
            count += 1
        return count

    with ThreadPoolExecutor(SAVERS + 1) as pool:
        loader = pool.submit(loads)
        try:
            list(pool.map(saves, range(SAVERS)))
        finally:
            done.set()
        assert loader.result() > 0
    assert_only_what_is_needed(path, weights)
    save(programs[1], path, 1, weights)
    assert value_of(path) == 1


PROCESS = """
import os, sys
sys.path[:0] = sys.argv[4:]
from tests.archive.test_concurrent_savers import *
path = Path(sys.argv[1])
program = archive.load(sys.argv[2])
for number in range(SAVERS):
    if os.fork() == 0:
        mine = numbered(program, number)
        for _ in range(TURNS):
            save(mine, path, number, sys.argv[3])
            assert value_of(path) in range(SAVERS)
        os._exit(0)
for number in range(SAVERS):
    assert os.wait()[1] == 0
"""


def test_processes(program: Any, tmp_path: Path) -> None:
    path = tmp_path / "folder" / "model.pt2"
    path.parent.mkdir()
    archive.save(program, tmp_path / "source.pt2")
    folders = [Path(__file__).parents[2], Path(fxpress.__file__).parents[1]]
    arguments = [path, tmp_path / "source.pt2", "safetensors", *folders]
    done = subprocess.run(
        [sys.executable, "-c", PROCESS, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert value_of(path) in range(SAVERS)
    assert_only_what_is_needed(path, "safetensors")
