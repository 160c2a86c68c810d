"""`save` with any call of the system failing, or being the last before the process is killed:
the old program and its weights are there, or the new ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export

from fxpress import archive
from tests.support.archived import OneWeight

SUPPORT = Path(__file__).parents[1] / "support"
ALL = ["kill", "fail", "short"]
SCENARIOS: dict[str, dict[str, Any]] = {
    "beside over beside": {"old": "safetensors", "new": "safetensors"},
    "beside over nothing": {"old": None, "new": "safetensors"},
    "beside over inside": {"old": "inline", "new": "safetensors"},
    "inside over beside": {"old": "safetensors", "new": "inline"},
    "inside over inside": {"old": "inline", "new": "inline"},
    "nowhere over beside": {"old": "safetensors", "new": "none"},
    "two programs": {"old": "safetensors", "new": "safetensors", "programs": 2},
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("source") / "source.pt2"
    archive.save(export(OneWeight(), (torch.ones(3),)), path)
    return path


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler, or no LD_PRELOAD")
    made = tmp_path_factory.mktemp("library") / "faults.so"
    flags = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-ldl"]
    subprocess.run([compiler, SUPPORT / "faults.c", "-o", made, *flags], check=True)
    return made


def sweep(
    library: Path, source: Path, folder: Path, scenario: dict[str, Any], step: int
) -> dict[str, Any]:
    command = [sys.executable, SUPPORT / "faults.py", library, source, folder / "watched"]
    done = subprocess.run(
        [*command, json.dumps(scenario), str(step)],
        env={**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@pytest.mark.slow("starts a process for each fault")
def test_some_calls_fail_or_are_the_last(library: Path, source: Path, tmp_path: Path) -> None:
    scenario = {**SCENARIOS["beside over beside"], "modes": ALL}
    found = sweep(library, source, tmp_path, scenario, 9)
    names = [call.split()[0] for call in found["calls"]]
    # Both are on the disk before either has its name; the folder is between the two names.
    order = [name for name in names if name in ("fsync", "rename")]
    assert order == ["fsync", "fsync", "rename", "fsync", "rename", "fsync"]
    assert {key.split(":")[0] for key in found["counts"]} >= {"kill", "fail"}


@pytest.mark.deep("every call of every scenario, some calls of the longest one")
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_fails_or_is_the_last(
    name: str, library: Path, source: Path, tmp_path: Path
) -> None:
    step = 1 if "programs" not in SCENARIOS[name] else 4  # it has as many calls as all others
    found = sweep(library, source, tmp_path, {**SCENARIOS[name], "modes": ALL}, step)
    print(name, len(found["calls"]), found["counts"])
    assert {key.split(":")[0] for key in found["counts"]} == set(ALL)
