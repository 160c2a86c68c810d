"""Write the page about programs: it opens from disk, without a server or the network.

The page is a static script and the data of the programs, which the script shows as text.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fxpress._base.observing.text import printable_lines
from fxpress._tools.view.comparison import Comparison, compare, differences
from fxpress._tools.view.matching import ALONE, CHANGED, FOLLOWS, SAME
from fxpress._tools.view.nodes import Graph
from fxpress._tools.view.report import Table, Values, file_part, table
from fxpress._tools.view.sources import Source

_TEMPLATES = Path(__file__).with_name("templates")
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; base-uri 'none'; \
form-action 'none'; style-src '{style_hash}'; script-src '{script_hash}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>fxpress</title>
<style>{style}</style>
</head>
<body>
<p>The script of this page does not run here: open the page in a browser.</p>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def page_of(sources: Sequence[Source]) -> str:
    """Return the page as HTML; for two sources, it also shows their differences.

    OSError or InspectionError if a file can no longer be read.
    """
    text = json.dumps(_data(sources), separators=(",", ":")).replace("<", "\\u003c")
    style, script = ((_TEMPLATES / f"page.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return _PAGE.format(
        style_hash=_hash(style), script_hash=_hash(script), style=style, data=text, script=script
    )


def _hash(text: str) -> str:
    """Return the hash with which a Content-Security-Policy permits an inline element."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(sources: Sequence[Source]) -> dict[str, Any]:
    values = Values()
    files = [file_part(source, values) for source in sources]
    graphs = [program.pop("graphs") for file in files for program in file["programs"]]
    comparisons = _comparisons(sources, files) if len(sources) == 2 else []
    shown: dict[str, Any] = _shown({"comparisons": comparisons, "files": files})
    for program in (each for file in shown["files"] for each in file["programs"]):
        program["graphs"] = graphs.pop(0)
    types, texts = _shown(values.types()), _shown([*values.texts])
    return {**shown, "types": types, "texts": texts}


def _shown(value: Any) -> Any:
    """Escape invisible characters, and characters that reorder text; keep line breaks."""
    if isinstance(value, str):
        return printable_lines(value)
    if isinstance(value, dict):
        return {_shown(key): _shown(each) for key, each in value.items()}
    return [*map(_shown, value)] if isinstance(value, (list, tuple)) else value


def _comparisons(sources: Sequence[Source], files: list[dict[str, Any]]) -> list[dict[str, Any]]:
    first, second = sources
    programs = [program for file in files for program in file["programs"]]
    numbers = [{each["name"]: programs.index(each) for each in file["programs"]} for file in files]
    made = []
    for each in compare(first, second):
        found = numbers[0][each.names[0]], numbers[1][each.names[1]]
        tables = _facts(programs[found[0]], programs[found[1]])
        nodes: dict[bool, list[Any]] = {}
        if each.matching is not None:
            graphs = first.graphs[each.names[0]][0], second.graphs[each.names[1]][0]
            tables = {"Nodes": _counts(each)} | tables
            nodes = _nodes(*graphs, each)
        is_plain = each.names == ("model", "model")
        made.append(
            {
                "title": "Difference" if is_plain else "Difference: {} and {}".format(*each.names),
                "verdict": _verdict(each, [*nodes] == [True]),
                "tables": tables,
                "programs": found,
                "nodes": [
                    (f"{_HEADINGS[key]}: {len(r):,}", not key, r) for key, r in nodes.items()
                ],
            }
        )
    return made


def _verdict(comparison: Comparison, only_in_sizes: bool) -> str:
    if comparison.is_same is None:
        return f"Cannot determine whether both compute the same: {comparison.reason}"
    if comparison.is_same:
        return "Both compute the same, whatever their weights are."
    return "They differ only in sizes." if only_in_sizes else "They do not compute the same."


def _facts(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Table]:
    """Return the differences between the tables of two programs."""
    found = {}
    theirs = dict(second["facts"])
    rows = [(k, v, theirs.get(k, "")) for k, v in first["facts"] if v != theirs.get(k)]
    operators = second["operators"]
    own = first["operators"]
    counts = [
        (name, f"{own.get(name, 0):,}", f"{operators.get(name, 0):,}")
        for name in {**own, **operators}
        if own.get(name) != operators.get(name)
    ]
    if rows:
        found["Facts that differ"] = table(("fact", "first", "second"), rows)
    if counts:
        head = ("operator", "#first", "#second")
        found["Operators that are called more or less often"] = table(head, counts)
    for name in ("Inputs", "Outputs", "Symbols", "Guards", "Weights"):
        mine, others = ({**each["tables"], **each["state"]}.get(name) for each in (first, second))
        sides = [[] if each is None else each["rows"] for each in (mine, others)]
        known = [set(side) for side in sides]
        only = [
            (word, *row)
            for word, side, other in zip(("first", "second"), sides, known[::-1], strict=True)
            for row in side
            if row not in other
        ]
        if only:
            head = ("in the", *(mine or others or {})["head"])
            found[f"{name} that only one has"] = table(head, only)
    return found


def _counts(comparison: Comparison) -> Table:
    """Return a table of the number of nodes in each state."""
    assert comparison.matching is not None
    counts = [Counter(states.values()) for states in comparison.matching.states]
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
    return table(("nodes that", "#first", "#second"), rows)


_HEADINGS = {False: "Nodes that differ", True: "Nodes that differ only in sizes"}


def _nodes(first: Graph, second: Graph, comparison: Comparison) -> dict[bool, list[Any]]:
    """Return table rows of the differing nodes, by whether only their sizes differ."""
    assert comparison.matching is not None
    numbers = [{node.id: i for i, node in enumerate(graph.nodes)} for graph in (first, second)]
    found: dict[bool, list[Any]] = {False: [], True: []}
    for each in differences(first, second, comparison.matching):
        places = [
            None if node is None else numbers[side][node.id]
            for side, node in enumerate((each.first, each.second))
        ]
        found[each.is_of_sizes].append((each.module or "(root)", *places, "\n".join(each.what)))
    return {key: rows for key, rows in found.items() if rows}
