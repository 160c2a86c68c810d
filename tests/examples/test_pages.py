"""The README and the guides run, block after block, and the links of pages lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import io
import itertools
import logging
import re
import shlex
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fxpress
from fxpress._tools.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("*.md"))
GUIDES = [*sorted((ROOT / "docs" / "guides").glob("*.md")), ROOT / "docs" / "start.md"]
# A block, and the output that follows it without a text in between.
BLOCK = re.compile(r"^```(python|sh)\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", re.M | re.S)
MODEL = re.compile(r"^class Block.*?(?=\n\n\n)", re.M | re.S)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
# Commands that this test does not run: installations, servers, and the programs of `examples/`,
# which test_programs.py runs.
NOT_RUN = ("pip", "python3", "apt-get", "torchrun", "model-explorer")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
# Definitions of the names that the README uses without importing them.
BEFORE = """
import copy
import sys
sys.path.insert(0, DOCS)
from example import model, x, program, graph_module
sys.path.remove(DOCS)
import torch
import fxpress
exported_program = program
other_model = copy.deepcopy(model)
other_model[1].norm.eps = 1e-3
other = torch.export.export(other_model, (x,))
stage_of = {node: i // 13 for i, node in enumerate(graph_module.graph.nodes)}
"""


def run(kind: str, text: str, names: dict[str, Any]) -> str:
    """Run a block; return its output."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        if kind == "python":
            exec(compile(text, "a page", "exec"), names)
            return printed.getvalue()
        for line in text.splitlines():
            words = shlex.split(line, comments=True)
            words = words[2:] if words[:2] == ["python", "-m"] else words
            words = [*itertools.dropwhile(lambda word: "=" in word, words)]  # the environment
            if words and words[0] not in NOT_RUN:
                assert words[0] == "fxpress", line
                # The answer "no" has the status 1: two programs differ.
                assert app.run(words[1:]) in (0, 1 if words[1] == "diff" else 0), line
    return printed.getvalue()


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Go to an empty folder, and afterwards restore the state of the process that pages change."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(webbrowser, "open", lambda url: True)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    torch.manual_seed(0)
    yield
    with contextlib.suppress(RuntimeError):  # it is not installed
        fxpress.uninstall()
    root.handlers[:] = handlers
    root.setLevel(level)


@pytest.mark.slow("exports a model for each page")
@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDES], ids=lambda page: page.stem)
def test_a_page_runs(page: Path, empty_folder: None) -> None:
    text = page.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}
    if page.parent == ROOT:
        run("python", f"DOCS = {str(ROOT / 'docs')!r}\n{BEFORE}", names)
    for kind, source, expected in BLOCK.findall(text):
        if kind == "sh" and page.parent == ROOT:
            continue  # its files are the reader's
        printed = run(kind, source, names)
        if expected:
            assert doctest.OutputChecker().check_output(expected, printed, FLAGS), printed


def test_pages_have_the_model_of_the_reference() -> None:
    (model,) = MODEL.findall((ROOT / "docs" / "example.py").read_text())
    for page in GUIDES:
        assert MODEL.findall(page.read_text()) in ([], [model])


def slugs(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {each.strip().replace(" ", "-") for each in kept}


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links(page: Path) -> None:
    for path, anchor in LINK.findall(page.read_text()):
        if ":" in path:  # another site
            continue
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in slugs(target), f"{path}#{anchor}"
