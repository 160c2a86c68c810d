"""`fxpress diff`: check whether programs in two files compute the same, and show differences."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from fxpress._base.observing.text import printable
from fxpress._files.format.package import InspectionError
from fxpress._files.format.tensors import LAYOUTS, MEMORY_FORMATS, dtype_of
from fxpress._tools.cli.output import Allowed, console, naming, working
from fxpress._tools.inspect.hashes import HashedText, UnknownOperatorError, hash_text
from fxpress._tools.inspect.nodes import module_paths

_NODE = re.compile(r"graph_module\.graph\.nodes\[(\d+)\]")
_STATE = re.compile(r"graph_module\.graph\.inputs\[(?:parameter|buffer) (.*?)\]")
_MODEL = "model"
_LONGEST = 100  # characters shown of a value
_MOST = 1_000_000  # differences that are counted


@dataclasses.dataclass
class Place:
    """A location where two programs differ."""

    path: str  # the location in the first program, or in the second if only that has it
    module: str | None  # the path of the module whose call was traced; None: outside of modules
    # The names of the node in both programs; None if a program has no such node, and for locations
    # outside of nodes.
    nodes: tuple[str | None, str | None]
    first: str  # the first program's value, as text
    second: str  # the second program's value


def show_difference(
    first: Path, second: Path, limit: int, weights: bool, allowed: Allowed, as_json: bool
) -> int:
    """Print where two programs differ; return 0 for the same, 1 for a difference."""
    paths = (first, second)
    with working(f"comparing {first} and {second}"):
        places = _places(paths, allowed)
        values = _differing_weights(paths, allowed) if weights else []
    if as_json:
        differences = [dataclasses.asdict(place) for place in places]
        found = {"differences": differences[:limit], "weights": values[:limit]}
        counts = {"places": len(places), "weights": len(values)}
        print(json.dumps({"counts": counts, **found}, indent=2, allow_nan=False))
    else:
        _show(first, second, places, values, limit)
    return 1 if places or values else 0


def _hashed(path: Path, allow_operators: Sequence[str]) -> HashedText | None:
    """Return a program with its hashes from the bytes alone; None: only a load can read it."""
    with naming(path):
        try:
            return hash_text(path, _MODEL, allow_operators=allow_operators)
        except UnknownOperatorError:  # the installed torch, or an imported module, may have it
            from fxpress._tools.cli.loading import registered

            return hash_text(path, _MODEL, registered, allow_operators)
        except InspectionError:  # a load reads pickles, or reports the damage
            return None


def _places(paths: tuple[Path, Path], allowed: Allowed) -> list[Place]:
    """Return where programs differ; torch is imported only if their hashes differ."""
    first, second = (_hashed(path, allowed.allow_operators) for path in paths)
    if first is not None and second is not None and first.hash == second.hash:
        return []
    import fxpress
    from fxpress._files.serde.difference import diff_texts

    if first is not None and second is not None:
        differences = diff_texts(first, second, _MOST)
    else:
        differences = fxpress.diff(*(_loaded(p, False, allowed) for p in paths), limit=_MOST)
    modules = [module_paths(path, _MODEL) for path in paths]
    places = []
    for found in differences:
        # The number of a node that only the second program has is its number there.
        is_seconds = found.first is None and _NODE.fullmatch(found.path) is not None
        module = _module_of(found.path, modules[is_seconds])
        path = found.path.removeprefix("graph_module.")
        field = path.rpartition(".")[2]
        texts = (_short(found.first, field), _short(found.second, field))
        places.append(Place(path, module, found.nodes, *texts))
    return places


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


def _module_of(path: str, of_nodes: list[str | None]) -> str | None:
    """Return the module that a location in a program belongs to; None: outside of modules."""
    if node := _NODE.match(path):
        number = int(node[1])
        return of_nodes[number] if number < len(of_nodes) else None
    state = _STATE.match(path)
    return state[1].rpartition(".")[0] if state else None


def _short(value: Any, field: str) -> str:
    text = str(_readable(value, field))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


# Fields of the schema that contain the number of a dtype, a layout or a memory format.
_DTYPES = ("dtype", "as_scalar_type")
_NUMBERED = {"layout": LAYOUTS, "as_layout": LAYOUTS, "as_memory_format": MEMORY_FORMATS}


def _readable(value: Any, field: str = "") -> Any:
    """Return a part of a program, the schema's `field`, in readable form."""
    if type(value) is int:
        return (
            dtype_of(value)[0] if field in _DTYPES else _NUMBERED.get(field, {}).get(value, value)
        )
    if value is None:
        return "nothing"
    if isinstance(value, list):
        return [_readable(each) for each in value]
    if not isinstance(value, dict):
        return value
    if "dtype" in value and "sizes" in value:
        dtype, _ = dtype_of(value["dtype"])
        return f"{dtype}{_readable(value['sizes'])}"
    kept = {key: each for key, each in value.items() if key not in ("known", "hint") or each}
    if len(kept) == 1:
        ((key, held),) = kept.items()
        if key.startswith("as_"):
            return _readable(held, key)
        if key == "values" and isinstance(held, list) and len(held) == 1:
            return _readable(held[0])
    return {key: _readable(each, key) for key, each in kept.items()}


def _show(
    first: Path, second: Path, places: list[Place], values: list[dict[str, Any]], limit: int
) -> None:
    out = console()
    if not places:
        out.print(Text(printable(f"{first} and {second} compute the same")), soft_wrap=True)
    else:
        count = f"{len(places)} place" + ("s" if len(places) > 1 else "")
        out.print(Text(printable(f"{first} and {second} differ in {count}")), soft_wrap=True)
        out.print(_by_module(places, limit))
    if values:
        out.print(Text(f"values of {len(values)} weights differ"))
        out.print(_weights(values[:limit]))


def _by_module(places: list[Place], limit: int) -> Table:
    table = Table.grid(padding=(0, 2))
    for _ in range(4):
        table.add_column(overflow="fold")
    counts: dict[str | None, int] = {}
    for place in places:
        counts[place.module] = counts.get(place.module, 0) + 1
    for module, count in counts.items():
        if limit < 1:
            break
        name = "(no module)" if module is None else module or "(root)"
        table.add_row(Text(printable(name), style="bold"), Text(str(count)))
        for place in [each for each in places if each.module == module][:limit]:
            names = ", ".join(dict.fromkeys(name for name in place.nodes if name))
            cells = (f"  {place.path}", names, place.first, place.second)
            table.add_row(*(Text(printable(cell)) for cell in cells))
            limit -= 1
    return table


def _weights(values: list[dict[str, Any]]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_row("", Text("largest difference", style="bold"), Text("relative", style="bold"))
    for each in values:
        difference, relative = each["absolute"], each["relative"]
        numbers = ("", "") if difference is None else (f"{difference:.3g}", f"{relative:.3g}")
        table.add_row(Text(printable(each["name"])), *numbers, Text(printable(each["what"])))
    return table
