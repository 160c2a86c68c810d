"""`fxpress demo`: each step runs by torch and by fxpress, and the results are compared."""

from __future__ import annotations

import json

import pytest

import fxpress
from fxpress._tools.cli import app


@pytest.mark.slow("exports by torch and by us")
def test_demo(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["demo", "--layers", "2", "--json"]) == 0
    done = json.loads(capsys.readouterr().out)
    assert [step["name"] for step in done] == [
        "export, non-strict",
        "export, strict",
        "save",
        "load",
        "run_decompositions",
        "ExportedProgram.module",
        "split_module, 4 stages",
        "unflatten",
        "forward",
    ]
    assert all(step["torch"] > 0 and step["ours"] > 0 for step in done)
    assert not fxpress.is_installed()


@pytest.mark.slow("exports by torch and by us")
def test_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["demo", "--layers", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a transformer of 1 layers")
    assert any(line.startswith("unflatten") for line in lines)
