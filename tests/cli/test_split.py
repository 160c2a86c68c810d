"""`fxpress split` writes a folder with a program for each stage, or an error of one line."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch.export import ExportedProgram

from fxpress._tools.cli import app
from fxpress.archive import load_pt2
from fxpress.pipeline import OperationTimes, plan
from tests.support.command_line import run
from tests.support.staged import Chain, assert_same_values


def test_the_default_folder(path: Path, program: ExportedProgram, tmp_path: Path) -> None:
    source = tmp_path / "model.pt2"
    source.write_bytes(path.read_bytes())
    done = run("split", str(source), "--stages", "2")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "model-stages"
    assert sorted(each.name for each in folder.iterdir()) == [
        *("manifest.json", "stage_0.pt2", "stage_1.pt2", "stages.svg", "state.json")
    ]
    assert done.stdout.splitlines()[-1].startswith(f"{folder}: 2 programs, manifest.json")
    args, kwargs = (torch.randn(5, 4), True), {"bias": torch.ones(4)}
    assert_same_values(
        Chain(folder)(*args, **kwargs), copy.deepcopy(program).module()(*args, **kwargs)
    )


def test_an_archive(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.pt2"
    assert app.run(["split", str(path), "--stages", "2", "-o", str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["stage_0", "stage_1"]
    assert lines[-1].startswith(f"{target}: 2 programs, manifest.json")
    assert len(load_pt2(target).exported_programs) == 2


@pytest.mark.parametrize("by", ["parameters", "bytes", "flops", "time", "module"])
def test_each_rule(by: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    given = ["split", str(path), "--stages", "2", "--by", by, "-o", str(folder), "--json"]
    assert app.run(given) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown == json.loads((folder / "manifest.json").read_text())
    assert shown["by"] == by


def test_example_inputs(path: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs.pt"
    torch.save(((torch.ones(5, 4), True), {"bias": torch.ones(4)}), inputs)
    given = ["split", str(path), "--stages", "2", "--by", "time", "-o", str(tmp_path / "out")]
    assert app.run([*given, "--example-inputs", str(inputs)]) == 0


def test_how_it_is_planned(
    path: Path, program: ExportedProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    times = tmp_path / "times.json"
    inputs = tmp_path / "inputs.pt"
    torch.save(((torch.ones(5, 4), True), {"bias": torch.ones(4)}), inputs)
    base = ["split", str(path), "--stages", "2", "--json"]
    given = [*base, "--by", "time", "--profile", str(times), "--example-inputs", str(inputs)]
    assert app.run([*given, "-o", str(tmp_path / "first")]) == 0
    first = json.loads(capsys.readouterr().out)
    profile = OperationTimes.from_json(times.read_text())
    assert app.run([*given, "-o", str(tmp_path / "second")]) == 0
    second = json.loads(capsys.readouterr().out)
    assert first["plan"] == second["plan"] == plan(program, 2, "time", profile=profile).document()
    options = ["--memory", "100000", "--slack", "0.5", "-o", str(tmp_path / "third")]
    assert app.run([*base, *options]) == 0
    third = json.loads(capsys.readouterr().out)
    assert third["plan"] == plan(program, 2, memory=100_000, slack=0.5).document()
    assert app.run([*base, "--memory", "1", "-o", str(tmp_path / "fourth")]) == 2
    shown = capsys.readouterr().err
    assert "cannot make 2 stages with at most 1 bytes of memory each" in shown
    assert len(shown.splitlines()) == 1
    times.write_text("no profile")
    assert app.run([*given, "-o", str(tmp_path / "fourth")]) == 2
    assert "the text is not of the format 'fxpress profile'" in capsys.readouterr().err
    assert not (tmp_path / "fourth").exists()


def test_what_is_refused(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, full = tmp_path / "text", tmp_path / "full"
    text.write_text("no program")
    full.mkdir()
    (full / "file").touch()
    before = sorted(tmp_path.iterdir())
    for arguments, said in (
        ([str(text), "--stages", "2"], "not a zip archive"),
        ([str(tmp_path / "nowhere.pt2"), "--stages", "2"], "No such file"),
        ([str(path), "--stages", "99"], "cannot make 99 stages"),
        ([str(path), "--stages", "0"], "0 is not in the range"),
        ([str(path), "--stages", "2", "-o", str(full)], "exists already"),
        ([str(path), "--stages", "2", "-o", str(tmp_path / "no" / "out")], "No such file"),
        ([str(path), "--stages", "2", "--by", "colour"], "colour"),
    ):
        out = [] if "-o" in arguments else ["-o", str(tmp_path / "out")]
        assert app.run(["split", *arguments, *out]) == 2, arguments
        shown = capsys.readouterr().err
        assert said in shown, arguments
        if "--by" not in arguments and said != "0 is not in the range":
            assert len(shown.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before
