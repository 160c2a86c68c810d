"""Functions of the extensions that are called before the rest of fxpress is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow("a process for each function")

SCRIPT = """
import importlib, os, random, sys

for name in sys.argv[2:]:
    importlib.import_module(name)
extension = importlib.import_module(sys.argv[1])
values = [None, 1, -1, 2**70, 1.5, "x", b"x", [], [1], {}, {"x": 1}, (), object(), object, len]
if "torch" in sys.modules:
    import torch
    values += [torch.ones(1), [torch.ones(1)], torch.nn.ReLU(), torch.fx.Graph()]


def call(function, most):
    for count in range(most + 1):
        for _ in range(40):
            try:
                result = function(*random.choices(values, k=count))
            except BaseException:
                continue
            if isinstance(function, type):
                for name in vars(function):
                    if callable(method := getattr(result, name, None)):
                        call(method, 2)


for name, function in vars(extension).items():
    if not callable(function):
        continue
    child = os.fork()
    if child == 0:
        random.seed(name)
        for output in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        call(function, 6)
        os._exit(0)
    if status := os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]):
        print(name, status)
"""


def crashes(*arguments: str) -> str:
    """The functions of an extension that end the process, with its exit status."""
    command = [sys.executable, "-c", SCRIPT, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout


def test_native() -> None:
    assert crashes("fxpress._native") == ""


def test_aten() -> None:
    from fxpress._torch import aten

    assert crashes(aten.extension.__name__, "torch") == ""
