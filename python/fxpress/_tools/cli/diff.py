"""`fxpress diff`: check whether programs in two files compute the same, and show differences."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from fxpress._base.observing.text import printable
from fxpress._files.format.package import InspectionError
from fxpress._tools.cli.output import Allowed, console, naming, working
from fxpress._tools.inspect.hashes import HashedText, UnknownOperatorError, hash_text

if TYPE_CHECKING:
    from fxpress._files.serde.difference import Difference

_MODEL = "model"
_MOST = 1_000_000  # the maximum number of differences that are counted


def show_difference(
    first: Path, second: Path, *, limit: int, weights: bool, allowed: Allowed, as_json: bool
) -> int:
    """Print where two programs differ; return 1 if they differ, else 0."""
    paths = (first, second)
    with working(f"comparing {first} and {second}"):
        places = _differences(paths, allowed)
        values = _differing_weights(paths, allowed) if weights else []
    if as_json:
        found = {"differences": [*map(_plain, places[:limit])], "weights": values[:limit]}
        counts = {"places": len(places), "weights": len(values)}
        print(json.dumps({"counts": counts, **found}, indent=2, allow_nan=False))
    else:
        _show(first, second, places, values, limit)
    return 1 if places or values else 0


def _plain(found: Difference) -> dict[str, Any]:
    first, second = found.texts()
    path = found.path.removeprefix("graph_module.")
    return {**vars(found), "path": path, "first": first, "second": second}


def _hashed(path: Path, allow_operators: Sequence[str]) -> HashedText | None:
    """Read a program's text and hashes without loading it; None if only a load can read it."""
    with naming(path):
        try:
            return hash_text(path, _MODEL, allow_operators=allow_operators)
        except UnknownOperatorError:  # torch or an imported module may register it
            from fxpress._tools.cli.loading import registered

            return hash_text(path, _MODEL, registered, allow_operators)
        except InspectionError:  # a load can read pickles, or reports the damage
            return None


def _differences(paths: tuple[Path, Path], allowed: Allowed) -> list[Difference]:
    """Return where programs differ; torch is imported only if their hashes differ."""
    first, second = (_hashed(path, allowed.allow_operators) for path in paths)
    if first is not None and second is not None and first.hash == second.hash:
        return []
    import fxpress
    from fxpress._files.serde.difference import diff_texts

    if first is not None and second is not None:
        return diff_texts(first, second, _MOST)
    return fxpress.diff(*(_loaded(path, False, allowed) for path in paths), limit=_MOST)


def _loaded(path: Path, weights: bool, allowed: Allowed) -> Any:
    import fxpress
    from fxpress._tools.cli.loading import options_named

    with options_named(path):
        return fxpress.load(path, load_weights=weights, **allowed._asdict())


def _differing_weights(paths: tuple[Path, Path], allowed: Allowed) -> list[dict[str, Any]]:
    from fxpress._tools.cli.weights import differing_weights, read_all

    values = []
    for path in paths:
        found = read_all(path, _MODEL, allowed.allow_pickle)
        if found is None:
            program = _loaded(path, True, allowed)
            found = {**program.state_dict, **program.constants}
        values.append(found)
    return differing_weights(*values)


def _show(
    first: Path, second: Path, places: list[Difference], values: list[dict[str, Any]], limit: int
) -> None:
    out = console()
    if not places:
        out.print(Text(printable(f"{first} and {second} compute the same")), soft_wrap=True)
    else:
        count = f"{len(places)} place" + ("s" if len(places) > 1 else "")
        out.print(Text(printable(f"{first} and {second} differ in {count}")), soft_wrap=True)
        from fxpress._files.serde.difference import Differences

        out.print(Text(str(Differences(places[:limit]))), soft_wrap=True)
    if values:
        out.print(Text(f"values of {len(values)} weights differ"))
        out.print(_weights(values[:limit]))


def _weights(values: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text("largest difference", style="bold"), Text("relative", style="bold"))
    for each in values:
        difference, relative = each["absolute"], each["relative"]
        numbers = ("", "") if difference is None else (f"{difference:.3g}", f"{relative:.3g}")
        table.add_row(Text(printable(each["name"])), *numbers, Text(printable(each["what"])))
    return table
