"""The Python of the README runs, one block after the other, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(ROOT.glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]*)(?:#([^)\s]+))?\)")
# What the README calls by name without saying where it comes from.
BEFORE = """
import copy
import torch
import fxpress
from example import model, x, program, graph_module
exported_program = program
other_model = copy.deepcopy(model)
other_model[1].norm.eps = 1e-3
other = torch.export.export(other_model, (x,))
stage_of = {node: i // 13 for i, node in enumerate(graph_module.graph.nodes)}
"""


@pytest.mark.slow("a process that imports torch")
def test_the_python_of_the_readme(tmp_path: Path) -> None:
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    assert len(blocks) > 4
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", "\n".join([BEFORE, *blocks])],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "docs"), *sys.path])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "eps.as_float: 1e-05 != 0.001" in done.stdout  # of the two programs


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
