"""Each public module can be imported first, and the package alone imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow("imports torch in processes of their own")
@pytest.mark.parametrize("module", ["archive", "serialize", "state"])
def test_first_import(module: str) -> None:
    command = [sys.executable, "-c", f"import fxpress.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ALONE = """
import sys
import torch
before = set(sys.modules)
import fxpress
print([name for name in sys.modules if name not in before and not name.startswith("fxpress")])
assert {"install", "load", "ArchiveError"} <= set(dir(fxpress))
for name in fxpress.__all__:
    assert getattr(fxpress, name) is vars(fxpress)[name]
"""


@pytest.mark.slow("imports torch in processes of their own")
def test_the_package_alone_imports_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
