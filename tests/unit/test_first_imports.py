"""Each public module can be the first one that is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["archive", "serialize", "state"])
def test_first_import(module: str) -> None:
    command = [sys.executable, "-c", f"import fxpress.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
