"""The list of tests that may be skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.skips import not_allowed, read_allowed

ROOT = Path(__file__).parents[2]
SKIPPING = """
import pytest

@pytest.mark.parametrize("case", ["a", "b"])
def test_case(case):
    if case == "b":
        pytest.skip("no such device")
"""


def test_every_line_of_the_list_is_read() -> None:
    assert read_allowed(ROOT / "tests" / "allowed_skips.txt")


def test_what_a_line_allows(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text(
        "# why\n\ntests/a.py::test_x[[]*] | no *: *\ntests/b.py::test_y | torch 2.13?\n"
    )
    allowed = read_allowed(path)
    fine = [("tests/a.py::test_x[[]1]", "no way: it\nfails"), ("tests/b.py::test_y", "torch 2.13?")]
    other = [
        ("tests/a.py::test_x1", "no way: it fails"),
        ("tests/a.py::test_x[[]1]", "something else"),
        ("tests/b.py::test_y", "torch 2.14"),
        ("tests/b.py::test_y2", "torch 2.13?"),
    ]
    assert not_allowed([*fine, *other], allowed) == other


@pytest.mark.slow("separate processes")
@pytest.mark.parametrize(
    ("rule", "workers", "status"), [("", 0, 0), ("strict", 0, 1), ("strict", 1, 1)]
)
def test_a_run_fails_for_a_skip_that_is_not_listed(
    tmp_path: Path, rule: str, workers: int, status: int
) -> None:
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "xdist.plugin", "-p", "tests.conftest"]
    environment = {**os.environ, "FXPRESS_SKIPS": rule, "PYTHONPATH": str(ROOT)}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    run = subprocess.run(
        [*command, "-n", str(workers), "-c", tmp_path / "pytest.ini", tmp_path],
        env={name: text for name, text in environment.items() if name != "PYTEST_XDIST_WORKER"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == status, run.stdout + run.stderr
    assert "1 passed, 1 skipped" in run.stdout
    line = "test_skipping.py::test_case[b] | no such device"
    assert (line in run.stdout) == (status == 1)
