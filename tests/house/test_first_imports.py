"""Each public module can be imported first, and the package alone imports little."""

from __future__ import annotations

import subprocess
import sys

import pytest

import fxpress


@pytest.mark.slow("imports torch in separate processes")
@pytest.mark.parametrize("module", ["archive", "checkpoint", "export", "serialize", "state"])
def test_first_import(module: str) -> None:
    command = [sys.executable, "-c", f"import fxpress.{module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_names_of_the_package() -> None:
    assert {"install", "load", "ArchiveError", "__version__", *fxpress.__all__} <= set(dir(fxpress))
    assert dir(fxpress) == sorted(dir(fxpress))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fxpress.nothing


ALONE = """
import sys
import torch
before = set(sys.modules)
import fxpress
before |= {"_interpreters", "_xxsubinterpreters"}  # of the check for subinterpreters
print([name for name in sys.modules if name not in before and not name.startswith("fxpress")])
assert {"install", "load", "ArchiveError"} <= set(dir(fxpress))
for name in fxpress.__all__:
    assert getattr(fxpress, name) is vars(fxpress)[name]
"""


@pytest.mark.slow("imports torch in separate processes")
def test_the_package_alone_imports_nothing_else() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"
