"""Write the page of a report: it opens from disk, without a server, a script or the network."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.text import printable
from fxpress._tools.view.comparison import Comparison, compare, differences, state_counts
from fxpress._tools.view.matching import ALONE, CHANGED, FOLLOWS, SAME
from fxpress._tools.view.nodes import Graph
from fxpress._tools.view.report import FilePart, ProgramPart, Table, file_part
from fxpress._tools.view.sources import Source

_TEMPLATES = Path(__file__).with_name("templates")


@dataclasses.dataclass
class ComparisonPart:
    """What the page says of how a program differs from its counterpart."""

    names: tuple[str, str]  # of the programs
    verdict: str  # a sentence
    tables: dict[str, Table]  # by their headings


def page_of(sources: Sequence[Source]) -> str:
    """Return the page; of two sources it also tells the differences.

    UnsupportedError without jinja2; OSError or InspectionError: a file can no longer be read.
    """
    try:
        import jinja2
    except ImportError as missing:
        raise UnsupportedError(
            "the report needs the package jinja2: pip install 'fxpress[report]' brings it"
        ) from missing
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        finalize=_shown,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    files = [file_part(source) for source in sources]
    comparisons = _comparisons(sources, files) if len(sources) == 2 else []
    page = environment.get_template("report.html")
    return str(page.render(files=files, comparisons=comparisons))


def _shown(value: Any) -> Any:
    """Return a text without characters that move others or cannot be seen; lines stay lines."""
    return "\n".join(map(printable, value.split("\n"))) if type(value) is str else value


def _comparisons(sources: Sequence[Source], files: list[FilePart]) -> list[ComparisonPart]:
    first, second = sources
    parts = [{part.name: part for part in file.programs} for file in files]
    made = []
    for each in compare(first, second):
        name, other = each.names
        tables = _facts(parts[0][name], parts[1][other])
        if each.matching is not None:
            graphs = first.graphs[name][0], second.graphs[other][0]
            tables |= _nodes(*graphs, each)
        made.append(ComparisonPart(each.names, _verdict(each), tables))
    return made


def _verdict(comparison: Comparison) -> str:
    if comparison.is_same is None:
        return f"Whether both compute the same cannot be told: {comparison.reason}"
    if comparison.is_same:
        return "Both compute the same, whatever their weights are."
    return "They do not compute the same."


def _facts(first: ProgramPart, second: ProgramPart) -> dict[str, Table]:
    """Return what differs in the tables of two programs."""
    found = {}
    theirs = dict(second.facts)
    rows = [(k, v, theirs.get(k, "")) for k, v in first.facts if v != theirs.get(k)]
    operators = {bar.name: bar.number for bar in second.operators}
    own = {bar.name: bar.number for bar in first.operators}
    counts = [
        (name, own.get(name, "0"), operators.get(name, "0"))
        for name in {**own, **operators}
        if own.get(name) != operators.get(name)
    ]
    if rows:
        found["Facts that differ"] = Table(("fact", "first", "second"), rows)
    if counts:
        head = ("operator", "#first", "#second")
        found["Operators that are called more or less often"] = Table(head, counts)
    for name in ("Inputs", "Outputs", "Symbols", "Guards", "Weights"):
        mine, others = (part.tables.get(name) for part in (first, second))
        rows_of = [set() if each is None else set(each.rows) for each in (mine, others)]
        columns = (mine or others or Table((), [])).head
        sides = [
            ("first", [r for r in mine.rows if r not in rows_of[1]] if mine else []),
            ("second", [r for r in others.rows if r not in rows_of[0]] if others else []),
        ]
        differing_rows = [(side, *row) for side, rows in sides for row in rows]
        if differing_rows:
            found[f"{name} that only one has"] = Table(("in the", *columns), differing_rows)
    return found


def _nodes(first: Graph, second: Graph, comparison: Comparison) -> dict[str, Table]:
    assert comparison.matching is not None
    counts = state_counts(comparison.matching)
    states = {
        SAME: "compute the same",
        CHANGED: "differ",
        FOLLOWS: "differ only in what they are computed from",
        ALONE: "have no counterpart",
    }
    rows = [
        (text, *(f"{side[state]:,}" for side in counts))
        for state, text in states.items()
        if any(side[state] for side in counts)
    ]
    tables = {"Nodes": Table(("nodes that", "#first", "#second"), rows)}
    found = [
        (each.module or "(root)", each.first, each.second, "\n".join(each.what))
        for each in differences(first, second, comparison.matching)
    ]
    if found:
        tables["Nodes that differ"] = Table(("module", "first", "second", "what differs"), found)
    return tables
