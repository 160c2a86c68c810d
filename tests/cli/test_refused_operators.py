"""Commands list operators that need permission, and take `--allow-operator`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fxpress
from fxpress._tools.cli import app
from tests.serde.test_refused_operators import maps_a_file

TARGET = "torch.ops.aten.from_file.default"
WHY = "its argument filename is a path"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fxpress.save(maps_a_file(tmp_path / "mapped"), tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def test_inspect_and_verify_list_them(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["inspect", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "needs allow_operators" in shown
    assert WHY in shown
    assert app.run(["inspect", "--json", str(path)]) == 0
    (program,) = json.loads(capsys.readouterr().out)["programs"]
    assert program["refused"] == {TARGET: WHY}
    for options, notes in (([], 1), (["--allow-operator", "aten.from_file"], 0)):
        assert app.run(["verify", "--json", str(path), *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert len(found) == notes
        assert all(
            each["is_note"] and "allow_operators=['aten.from_file']" in each["text"]
            for each in found
        )


def test_commands_that_load(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = path.with_name("other.pt2")
    commands = {
        "verify": ["verify", "--load", str(path)],
        "hash": ["hash", str(path)],
        "diff": ["diff", str(path), str(path)],
        "convert": ["convert", str(path), str(other)],
        "split": ["split", str(path), "--stages", "1"],
    }
    for name, command in commands.items():
        status = app.run(command)
        out, err = capsys.readouterr()
        assert status == (1 if name == "verify" else 2), name
        assert f"`{TARGET}` is refused: {WHY}" in out + err, name
        assert "--allow-operator aten.from_file" in out + err, name
        assert app.run([*command, "--allow-operator", "json", "--allow-operator", "aten"]) == 0, (
            name
        )
        capsys.readouterr()
    loaded = fxpress.load(path, allow_operators=["aten"])
    app.run(["hash", str(path), "--allow-operator", TARGET])
    assert capsys.readouterr().out.split()[0] == fxpress.graph_hash(loaded)
    assert not path.with_name("mapped").exists()
