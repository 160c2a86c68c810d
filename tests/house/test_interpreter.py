"""One Python file and one C++ file depend on the release of Python."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fxpress._base import interpreter

ROOT = Path(__file__).parents[2]
PLACES = {
    "csrc": (r"PY_VERSION_HEX|PY_MINOR_VERSION|ma_version_tag|tp_version_tag", "py/interpreter.h"),
    "python/fxpress": (
        r"version_info|hexversion|annotationlib|co_stacksize",
        "_base/interpreter.py",
    ),
}


@pytest.mark.parametrize("folder", PLACES)
def test_one_file_asks_for_the_version(folder: str) -> None:
    words, place = PLACES[folder]
    files = (path for path in (ROOT / folder).rglob("*") if path.suffix in {".py", ".h", ".cpp"})
    asking = {str(p.relative_to(ROOT / folder)) for p in files if re.search(words, p.read_text())}
    assert asking == {place}


def test_annotations_of_a_class() -> None:
    class Base:
        x: int

    class Derived(Base):
        y: NotThere  # type: ignore[name-defined]  # noqa: F821

    assert set(interpreter.annotations_of(Base)) == {"x"}
    assert set(interpreter.annotations_of(Derived)) == {"y"}
    assert {"_parameters", "training", "call_super_init"} <= set(
        interpreter.annotations_of(torch.nn.Module)
    )


def test_a_large_frame() -> None:
    def call(x: int) -> int:
        return x + 1

    large = interpreter.in_large_frame(call)
    assert large(1) == 2
    assert (large.__code__.co_stacksize >= 1 << 15) == (sys.version_info >= (3, 11))


def test_a_python_without_the_gil_is_refused() -> None:
    source = "import sys; sys._is_gil_enabled = lambda: False; import fxpress"
    command = [sys.executable, "-c", source]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    message = done.stderr.splitlines()[-1]
    assert message.startswith("ImportError: fxpress does not support Python with the GIL disabled")
