"""`fxpress inspect`: show the contents of a file on one screen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from fxpress._base.observing.text import bytes_text, counted_text, printable, printable_lines
from fxpress._files.format.tensors import Tensor
from fxpress._tools.cli.output import console, naming, working
from fxpress._tools.inspect.checkpoints import Checkpoint, read_checkpoint
from fxpress._tools.inspect.modules import Weight, lines_of
from fxpress._tools.inspect.nodes import NodeSummary, find_nodes
from fxpress._tools.inspect.program import Program, Value
from fxpress._tools.inspect.summary import UNOPENED, Summary, summarize

_LONGEST = 400  # the maximum characters of a cell of a table
_MOST_LINES = 12  # the maximum lines of one table, unless an option requests all
_MOST_ROWS = 2_000  # the maximum rows if an option requests all; rich needs 0.4 ms for each row
_MOST_PARTS = 100  # the maximum number of programs of a file, or of nodes of one name
_DEPTH = 2  # the default depth of the tree of modules


class Wanted(NamedTuple):
    """The parts of a file to show."""

    depth: int | None  # the depth of the tree of modules; None: _DEPTH, at most _MOST_LINES rows
    all_operators: bool
    all_weights: bool
    as_json: bool
    most_rows: int = _MOST_ROWS  # the maximum rows of a table if an option requests all


def show_file(path: Path, wanted: Wanted) -> None:
    """Print the contents of a file, or of a folder of weights."""
    with naming(path), working(f"reading {path}"):
        checkpoint = read_checkpoint(path)
        summary = summarize(path) if checkpoint is None else checkpoint
    if wanted.as_json:
        print(json.dumps(summary.plain(), indent=2))
        return
    out = console(is_wide=wanted.all_weights)
    if isinstance(summary, Checkpoint):
        for part in _checkpoint(summary, wanted.all_weights):
            out.print(part, soft_wrap=isinstance(part, Text))
        return
    out.print(_file(summary), soft_wrap=True)
    shown = summary.programs[:_MOST_PARTS]
    wanted = wanted._replace(most_rows=_share(shown))
    for program in shown:
        out.print()
        out.print(_program(program, wanted))
    _print_rest(out, len(summary.programs), "programs")


def _share(parts: Sequence[object]) -> int:
    """Return the maximum rows of each table; all tables together have about `_MOST_ROWS`."""
    return max(_MOST_LINES, _MOST_ROWS // max(1, len(parts)))


def _print_rest(out: Any, count: int, noun: str) -> None:
    if count > _MOST_PARTS:
        out.print(_rest(count - _MOST_PARTS, f"{noun} "))


def _rest(count: int, noun: str = "", option: str = "--json") -> Text:
    return Text(f"and {count} more {noun}({option} shows all)")


def _checkpoint(found: Checkpoint, all_tensors: bool) -> Iterator[RenderableType]:
    """Yield the parts to print for a file or folder of weights: facts, then a table."""
    has_stages = bool(found.stages)
    count, noun = (len(found.stages), "stage") if has_stages else (len(found.tensors), "tensor")
    head = f"{found.path}: {bytes_text(found.bytes)}, {found.kind}, {counted_text(count, noun)}"
    lines = [head]
    if found.metadata:
        lines.append(
            f"metadata: {_some([f'{key}={text}' for key, text in found.metadata.items()])}"
        )
    if found.others:
        lines.append(f"values: {_some(found.others)}")
    yield Text("\n".join(map(printable, lines)))
    rows: list[tuple[str, ...]]
    if has_stages:
        rows = [("", "bytes", "inputs", "outputs")]
        for each in found.stages:
            ends = (f"{each['inputs']:,}", f"{each['outputs']:,}")
            rows.append((each["file"], bytes_text(each["bytes"]), *ends))
        yield _table(rows, _MOST_ROWS, (1, 2, 3))
    elif all_tensors and found.tensors:
        tensors = found.tensors.items()
        rows = [(name, str(tensor), bytes_text(tensor.bytes or 0)) for name, tensor in tensors]
        yield _table(rows, _MOST_ROWS, (2,))
    elif found.tensors:
        yield _by_dtype(list(found.tensors.values()))


def show_nodes(path: Path, name: str, as_json: bool) -> int:
    """Print the nodes with a name; return 1 if there are none, else 0."""
    with naming(path), working(f"reading {path}"):
        nodes = find_nodes(path, name)
    if as_json:
        print(json.dumps([node._asdict() for node in nodes], indent=2))
    else:
        out = console()
        shown = nodes[:_MOST_PARTS]
        for node in shown:
            out.print(_node(node, _share(shown)))
        _print_rest(out, len(nodes), "nodes")
    if not nodes:
        click.echo(printable(f"fxpress: {path}: no node is called {name!r}"), err=True)
    return 0 if nodes else 1


def _file(summary: Summary) -> Text:
    version = f", version {summary.format_version}" if summary.format_version else ""
    lines = [
        f"{summary.path}: {bytes_text(summary.bytes)}, {summary.kind}{version}, "
        f"{summary.records} records"
    ]
    if summary.compiled:
        lines.append(f"compiled models: {', '.join(summary.compiled)}")
    if summary.extra_files:
        files = [f"{name} ({bytes_text(size)})" for name, size in summary.extra_files.items()]
        lines.append(f"extra files: {_some(files)}")
    if summary.runs:
        runs = [f"{record} ({what})" for record, what in summary.runs.items()]
        lines.append(f"{UNOPENED}: {_some(runs)}")
    return Text("\n".join(map(printable, lines)))


def _some(texts: list[str]) -> str:
    left = len(texts) - _MOST_LINES
    return ", ".join(texts[:_MOST_LINES]) + (f" and {left} more" if left > 0 else "")


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    return grid


def _program(program: Program, wanted: Wanted) -> Table:
    grid = _grid()
    writer = f"torch {program.torch_version}" if program.torch_version else "an unknown torch"
    dialect = ", ".join(program.dialect)
    head = f"by {writer}, schema {program.schema_version}{', ' + dialect if dialect else ''}"
    for name, part in (
        (f"program {program.name}", Text(printable(head))),
        ("inputs", _values(program.inputs)),
        ("outputs", _values(program.outputs)),
        ("symbols", _symbols(program)),
        ("guards", _guards(program)),
        ("operators", _operators(program, wanted)),
        ("needs allow_operators", _refused(program, wanted)),
        ("modules", _modules(program, wanted)),
        ("weights", _weights(program, wanted)),
    ):
        if part is not None:
            grid.add_row(Text(printable(name)), part)
    return grid


def _table(
    rows: Sequence[tuple[str, ...]], most: int, right: tuple[int, ...], option: str = "--json"
) -> Table:
    """Return the first rows as a table, with the option that shows more."""
    table = Table.grid(padding=(0, 2))
    shown = rows[:most]
    # Empty columns are omitted: rich counts 0 characters for an empty column, but draws 1, and
    # cuts the longest cell by 1.
    columns = [column for column in range(len(rows[0])) if any(row[column] for row in shown)]
    for column in columns:
        table.add_column(justify="right" if column in right else "left", overflow="fold")
    for row in shown:
        table.add_row(*(_cell(row[column]) for column in columns))
    if len(shown) < len(rows):
        option = option if most == _MOST_LINES else "--json"
        table.add_row(_rest(len(rows) - len(shown), option=option))
    return table


def _most(wanted: Wanted, all_rows: bool) -> int:
    return wanted.most_rows if all_rows else _MOST_LINES


def _cell(text: str) -> Text:
    """Return a cell, shortened because rich pads all rows to the longest; `--json` shows all."""
    return Text(printable(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."))


def _values(values: list[Value]) -> RenderableType | None:
    if not values:
        return None
    rows = []
    for value in values:
        is_plain = value.kind in ("user_input", "user_output")
        what = "" if is_plain else f"{value.kind.replace('_', ' ')} {value.target or ''}"
        rows.append((value.name, value.type, what))
    return _table(rows, _MOST_LINES, ())


def _symbols(program: Program) -> Text | None:
    lines = []
    for symbol, (least, greatest) in program.symbols.items():
        lower = "" if least is None else f"{least} <= "
        upper = "" if greatest is None else f" <= {greatest}"
        lines.append(f"{lower}{symbol}{upper}")
    return Text(printable(_some(lines))) if lines else None


def _guards(program: Program) -> Table | None:
    return _table([(each,) for each in program.guards], _MOST_LINES, ()) if program.guards else None


def _operators(program: Program, wanted: Wanted) -> Table:
    total = sum(program.operators.values())
    rows = [(f"{total:,}", "in all")]
    rows += [
        (f"{count:,}", target.removeprefix("torch.ops."))
        for target, count in program.operators.items()
    ]
    return _table(rows, _most(wanted, wanted.all_operators), (0,), "--ops")


def _refused(program: Program, wanted: Wanted) -> Table | None:
    rows = [(target.removeprefix("torch.ops."), why) for target, why in program.refused.items()]
    return _table(rows, _most(wanted, wanted.all_operators), (), "--ops") if rows else None


def _modules(program: Program, wanted: Wanted) -> Table:
    rows = [("", "operators", "parameters", "bytes")]
    for depth, module in lines_of(program.root, _DEPTH if wanted.depth is None else wanted.depth):
        name = module.path.rpartition(".")[2] or "(root)"
        class_name = (module.class_name or "").rpartition(".")[2]
        rows.append(
            (
                f"{'  ' * depth}{name} {class_name}",
                f"{module.operators:,}",
                f"{module.parameters:,}",
                bytes_text(module.bytes),
            )
        )
    return _table(rows, _most(wanted, wanted.depth is not None), (1, 2, 3), "--tree DEPTH")


def _weights(program: Program, wanted: Wanted) -> Table | None:
    if not program.weights:
        return None
    if wanted.all_weights:
        return _table([_weight(each) for each in program.weights], wanted.most_rows, (2,))
    return _by_dtype([each.tensor for each in program.weights if each.tied_to is None])


def _by_dtype(tensors: list[Tensor]) -> Table:
    by_dtype: dict[str, list[Tensor]] = {}
    for tensor in tensors:
        by_dtype.setdefault(tensor.dtype, []).append(tensor)
    rows = [
        (dtype, f"{len(held):,} tensors", bytes_text(sum(each.bytes or 0 for each in held)))
        for dtype, held in by_dtype.items()
    ]
    return _table(rows, _MOST_ROWS, (1, 2))


def _weight(weight: Weight) -> tuple[str, ...]:
    size = "" if weight.tensor.bytes is None else bytes_text(weight.tensor.bytes)
    pickled = "pickle" if weight.is_pickled else ""
    return weight.name, str(weight.tensor), size, weight.kind, weight.record or "", pickled


def _node(node: NodeSummary, most: int) -> Table:
    grid = _grid()
    outputs = [f"{name}: {kind}" for name, kind in node.outputs]
    rows = [("program", node.program), ("target", node.target), ("outputs", "\n".join(outputs))]
    rows += [(f"argument {name}", value) for name, value in node.arguments]
    rows += list(node.metadata.items())
    for name, value in rows[:most]:
        grid.add_row(Text(printable(name)), Text(printable_lines(value)))
    if len(rows) > most:
        grid.add_row(_rest(len(rows) - most))
    return grid
