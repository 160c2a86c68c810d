"""Write docs/benchmarks.md from the results of a full run and the text in page.md."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any

import plot
from figures import Figure, Step, from_record
from groups import FULL_GROUPS
from report import COLUMNS, cells, medians

TEMPLATE = Path(__file__).with_suffix(".md")  # has a section, with a slot, for each group


def write(path: Path, run: dict[str, Any]) -> list[Path]:
    """Write the page and, in the folder `plots` next to it, the plots; return all files.

    Args:
        run: the contents of the JSON file of a full run.
    """
    figures = [from_record(record) for record in run["figures"]]
    slots = {name: _table_of(name, run, figures) for name in FULL_GROUPS}
    plots = plot.draw_sizes(figures, path.parent / "plots")
    slots["sizes"] += "".join(f"\n\n![{each.stem}](plots/{each.name})" for each in plots)
    minutes = f"{sum(run['seconds'].values()) / 60:.0f} minutes"
    slots["run"] = _table([["run", ""], *run["facts"].items(), ["duration", minutes]])
    slots["model_layers"] = run["effort"]["model_layers"]
    path.write_text(Template(TEMPLATE.read_text()).substitute(slots))
    return [path, *plots]


def _table_of(name: str, run: dict[str, Any], all_figures: Sequence[Figure]) -> str:
    """Return the table of a group, or the reason why it is missing."""
    figures = [figure for figure in all_figures if figure.group == name]
    if not figures:
        return f"This run did not measure the group: {run['failed'].get(name, 'not selected')}."
    steps = [figure for figure in figures if isinstance(figure, Step)]
    if steps:
        different = [f"- {s.model}, {s.what}: `{s.difference}`" for s in steps if s.difference]
        title = ["", "These results differ from torch's:", ""] if different else []
        return "\n".join([_table(medians(steps)), *title, *different])
    rows = [["model", "measurement", *COLUMNS[:3], "ratio of", *COLUMNS[3:]]]
    for figure in figures:
        ours, other, unit, *ratio = cells(figure)
        sides = figure.sides if figure.ratio else ""
        rows.append([figure.model, figure.what, ours, other, unit, sides, *ratio])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; its first row is the header."""
    header, *lines = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([header, "|---" * len(rows[0]) + "|", *lines])
