"""`fxpress view` and `fxpress.view.show` open the page in the browser, or show it in a notebook."""

from __future__ import annotations

import json
import subprocess
import sys
import types
import webbrowser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlparse

import pytest
import torch
from torch.export import ExportedProgram, export

import fxpress.view
from fxpress._tools.cli import app


@pytest.fixture(scope="module")
def program() -> ExportedProgram:
    return export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))


@pytest.fixture
def path(program: ExportedProgram, tmp_path: Path) -> Path:
    torch.export.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that the browser was opened with."""
    found: list[Path] = []

    def open_(url: str) -> bool:
        assert url.startswith("file:///")
        found.append(Path(unquote(urlparse(url).path)))
        return True

    monkeypatch.setattr(webbrowser, "open", open_)
    return found


def test_programs_are_opened(path: Path, program: ExportedProgram, opened: list[Path]) -> None:
    fxpress.view.show(path, program)
    (page,) = opened
    assert "Both compute the same" in page.read_text()
    assert page.parent.stat().st_mode & 0o077 == 0  # others cannot read it


def test_the_command(
    path: Path, opened: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert app.run(["view", str(path)]) == 0
    assert capsys.readouterr().out.strip() == str(opened[0])
    assert app.run(["view", str(path), "--no-open"]) == 0
    written = Path(capsys.readouterr().out.strip())
    assert written.read_text() == opened[0].read_text()
    assert written not in opened
    target, graphs = tmp_path / "page.html", tmp_path / "graphs.json"
    files = ["--export", str(target), "--json", str(graphs)]
    assert app.run(["view", str(path), *files]) == 0
    assert {str(target), str(graphs)} <= set(capsys.readouterr().out.splitlines())
    assert target.read_text() == opened[0].read_text()
    assert json.loads(graphs.read_text())["graphs"]
    assert len(opened) == 1
    assert app.run(["view", str(path), "--export", str(target), "--open"]) == 0
    assert opened[1:] == [target]
    capsys.readouterr()
    assert app.run(["view", str(path), "--export", "-"]) == 0
    assert capsys.readouterr().out == target.read_text()
    assert app.run(["view", str(path), "--export", "-", "--open"]) == 2


def test_without_a_browser(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    assert app.run(["view", str(path)]) == 2
    done = capsys.readouterr()
    assert f"no browser was found; the page is {done.out.strip()}" in done.err
    with pytest.raises(fxpress.UnsupportedError, match="no browser was found"):
        fxpress.view.show(path)


def test_in_a_notebook(
    path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Path], tmp_path: Path
) -> None:
    shown: list[dict[str, str]] = []
    python, display = types.ModuleType("IPython"), types.ModuleType("IPython.display")
    shell: Any = types.SimpleNamespace(kernel=None)
    monkeypatch.setattr(python, "get_ipython", lambda: shell, raising=False)
    monkeypatch.setattr(display, "display", lambda data, raw: shown.append(data), raising=False)
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    fxpress.view.show(path)  # in a terminal
    assert len(opened) == 1
    shell.kernel = object()
    fxpress.view.show(path)
    assert len(opened) == 1
    (data,) = shown
    frame = data["text/html"]
    assert frame.startswith('<iframe sandbox="allow-scripts" srcdoc="&lt;!DOCTYPE html&gt;')
    assert frame.count('"') == 10  # none of the page ends the attribute
    assert data["text/plain"] == "a page about model.pt2"


def test_what_was_removed_names_its_replacement(
    program: ExportedProgram, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(TypeError, match=r"fxpress\.view\.show"):
        fxpress.view(program)  # type: ignore[operator]
    for name in ("view", "config", "export"):
        with pytest.raises(AttributeError, match="was removed: use"):
            getattr(fxpress.view, name)
    assert app.run(["demo", "--layers", "2"]) == 2
    assert "python examples/demo.py" in capsys.readouterr().err


def test_submodules_are_imported_when_they_are_used() -> None:
    script = "import sys, fxpress; assert 'torch' not in sys.modules; fxpress.view.show"
    script += "; assert 'torch' not in sys.modules; fxpress.archive.Limits; fxpress.pipeline.plan"
    subprocess.run([sys.executable, "-c", script], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fxpress.nothing  # type: ignore[attr-defined]
