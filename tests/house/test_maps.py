"""The design pages name files and functions that exist, and they name each file of the package."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "design").glob("*.md"))
BASES = ("", "csrc", "python/fxpress", "tests", "python", "docs", "docs/design", ".ci")
# `path` or `path` (`name`, `name`); a path has a slash or a suffix.
NAMED = re.compile(r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|pyi|cpp|h|def|md|sh|html|cmake)|(?:[\w.-]+/)+)`")
IN_FILE = re.compile(NAMED.pattern + r" \(((?:`\w+`(?:, | and )?)+)\)")


def found(path: str) -> Path | None:
    """The file or folder that a page names: a path from one of `BASES`, or the name of a file."""
    places = [ROOT / base / path for base in BASES]
    if "/" not in path:
        places += [p for base in BASES[1:4] for p in (ROOT / base).rglob(path)]
    return next((place for place in places if place.exists()), None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_functions_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    missing = [path for path in NAMED.findall(text) if found(path) is None]
    assert not missing
    for path, names in IN_FILE.findall(text):
        file = found(path)
        assert file is not None
        if file.is_file():
            absent = [n for n in re.findall(r"\w+", names) if n not in file.read_text()]
            assert not absent, f"{path} has no {absent}"


def test_pages_name_each_file() -> None:
    text = " ".join(page.read_text() for page in PAGES)
    modules = (ROOT / "python" / "fxpress").rglob("*/*.py")
    names = {str(p.relative_to(ROOT / "python" / "fxpress")) for p in modules}
    names = {n for n in names if n.startswith("_") and not n.endswith("__init__.py")}
    folder = ROOT / "csrc"
    sources = (p for p in folder.rglob("*") if p.suffix in (".h", ".cpp", ".def"))
    names |= {f"csrc/{p.relative_to(folder).with_suffix('')}" for p in sources}
    assert not {name for name in names if name not in text}
