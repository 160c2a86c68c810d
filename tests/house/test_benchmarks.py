"""The page of benchmarks and the README's table name benchmarks that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TEMPLATE = (BENCHMARKS / "page.md").read_text()
HEADING = re.compile(r"^##? .*$", re.MULTILINE)


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that imports a module of the benchmarks."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_each_group_has_a_section(modules: Any) -> None:
    groups = modules("groups").FULL_GROUPS
    slots = re.findall(r"\$(\w+)", TEMPLATE)
    assert sorted(slots) == sorted(["run", "model_layers", *groups])
    sections = TEMPLATE.split("\n## ")[1:]
    tables = [re.findall(r"^\$\w+$", section, re.MULTILINE) for section in sections]
    assert all(len(found) == 1 for found in tables[:-1])
    assert not tables[-1]  # links to the measurements on a GPU


def test_page_from_saved_results(modules: Any, tmp_path: Path) -> None:
    figures, page = modules("figures"), modules("page")
    ratio = figures.Ratio(12.5, 11.5, 13.1)
    goal = figures.Goal(16, more_is_better=True)
    split = ("a transformer", "`split_module`", "us/node", 5.3, 66, ratio, 7, goal)
    record = figures.to_record(figures.Figure(*split, group="split"))
    assert figures.to_record(figures.from_record(record)) == record
    steps = [
        figures.to_record(
            figures.Step(
                *("a model", "`save`", "s", 0.1, speed / 10),
                ratio=figures.Ratio(speed, speed, speed),
                report=figures.Report(calls=3),
                group="models",
                family=family,
                sizes="static",
                difference=difference,
            )
        )
        for speed, family, difference in ((3, "llama", ""), (5, "t5", "a name"))
    ]
    assert figures.to_record(figures.from_record(steps[0])) == steps[0]
    run = {
        "facts": {"torch": "2.15.0"},
        "effort": {"model_layers": 2},
        "seconds": {"split": 240.0},
        "failed": {"whole": "ValueError('no')"},
        "figures": [record, *steps],
    }
    path = tmp_path / "benchmarks.md"
    assert page.write(path, run) == [path]
    text = path.read_text()
    row = "5.3 | 66 | us/node | torch / fxpress | 12.5x | 11.5 to 13.1 | 7 | >= 16x: NOT met"
    assert f"| a transformer | `split_module` | {row} |" in text
    assert "| `save` | 4x | 3x, llama | 1 of 2 |" in text
    assert "- a model, `save`: `a name`" in text
    assert "| duration | 4 minutes |" in text
    assert "did not measure the group: ValueError('no')." in text
    assert HEADING.findall(text) == HEADING.findall(TEMPLATE)


def test_operations_of_the_readme_exist() -> None:
    table = (ROOT / "README.md").read_text().partition("\n| operation |")[2].partition("\n\n")[0]
    operations = re.findall(r"^\| (.*?) \|", table, re.MULTILINE)[1:]
    assert operations
    constants = {
        node.value
        for path in BENCHMARKS.glob("bench_*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant)
    }
    assert {name.strip("`") for name in operations} - constants == set()


def test_the_published_page_has_the_sections_of_the_template() -> None:
    page = ROOT / "docs" / "benchmarks.md"
    text = page.read_text()
    assert HEADING.findall(text) == HEADING.findall(TEMPLATE)
    assert "did not measure" not in text
    plots = re.findall(r"!\[\w+\]\((.*?)\)", text)
    assert plots
    assert all((page.parent / plot).exists() for plot in plots)
