"""Daemon threads that are in a call of fxpress when Python ends: it ends as without them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.exits import PLACES


@pytest.mark.slow("a process for each place")
def test_a_daemon_thread_at_exit(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.support.exits", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    assert sorted(found) == sorted((place, 0, "") for place in PLACES)
