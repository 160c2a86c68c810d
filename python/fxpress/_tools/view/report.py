"""Collect what the page of a report says of programs."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.text import bytes_text, counted_text
from fxpress._tools.inspect.modules import Module, lines_of
from fxpress._tools.inspect.program import Program, Value, Weight
from fxpress._tools.inspect.summary import UNOPENED, Summary
from fxpress._tools.view.flops import Count, count_flops
from fxpress._tools.view.nodes import Graph
from fxpress._tools.view.pictures import Picture, picture_of
from fxpress._tools.view.sources import Source

_MOST_ROWS = 500  # of a table
_MOST_MODULES = 2000
_DEPTH = 30  # of modules within each other
_NOT_KNOWN = "\u2013"
_OPEN = 2  # levels of modules that are shown at first


@dataclasses.dataclass
class Table:
    """Rows of texts."""

    head: tuple[str, ...]  # names of the columns; a name that begins with "#" is of numbers
    rows: Sequence[tuple[str, ...]]  # all rows; the page shows the first ones

    def shown(self) -> Sequence[tuple[str, ...]]:
        """Return the rows that the page shows."""
        return self.rows[:_MOST_ROWS]

    def left(self) -> int:
        """Return the number of the other rows."""
        return max(0, len(self.rows) - _MOST_ROWS)


@dataclasses.dataclass
class Bar:
    """A bar of a plot: what it is of, its number as a text, its length in percent."""

    name: str
    number: str
    percent: float


@dataclasses.dataclass
class ModuleRow:
    """A module in a tree that is written as a list. Numbers are of the module and those in it."""

    # "open": those in it follow; "leaf": it has none; "close": the end of one that was opened,
    # without other fields.
    step: str
    name: str = ""
    class_name: str = ""
    operators: str = ""
    parameters: str = ""
    bytes: str = ""
    flops: str = ""
    is_open: bool = False  # whether it shows those in it at first


@dataclasses.dataclass
class ProgramPart:
    """What the page says of a program."""

    name: str
    facts: list[tuple[str, str]]
    tables: dict[str, Table]
    operators: list[Bar]
    dtypes: list[Bar]
    modules: list[ModuleRow]
    modules_left: int
    notes: list[str]
    picture: Picture | None
    no_picture: str


@dataclasses.dataclass
class FilePart:
    """What the page says of a file."""

    name: str
    facts: list[tuple[str, str]]
    programs: list[ProgramPart]


def file_part(source: Source) -> FilePart:
    """Describe a source; OSError, InspectionError: it cannot be read any more."""
    summary = source.summary()
    parts = [
        _program(program, source.graphs[program.name])
        for program in summary.programs
        if program.name in source.graphs
    ]
    return FilePart(source.name, list(_file_facts(summary)), parts)


def _distinct(program: Program, kind: str) -> Iterator[Weight]:
    return (each for each in program.weights if each.kind == kind and each.tied_to is None)


def _items(weight: Weight) -> int:
    return math.prod(size for size in weight.tensor.shape if isinstance(size, int))


def _file_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    version = f", version {summary.format_version}" if summary.format_version else ""
    yield "kind", f"{summary.kind}{version}"
    if summary.bytes:
        yield "size", f"{bytes_text(summary.bytes)} in {counted_text(summary.records, 'record')}"
    if summary.compiled:
        yield "compiled models", ", ".join(summary.compiled[:_MOST_ROWS])
    files = [f"{name} ({bytes_text(size)})" for name, size in summary.extra_files.items()]
    if files:
        yield "extra files", ", ".join(files[:_MOST_ROWS])
    runs = [f"{record} ({what})" for record, what in summary.runs.items()]
    if runs:
        yield UNOPENED, ", ".join(runs[:_MOST_ROWS])


def _program(program: Program, graphs: list[Graph]) -> ProgramPart:
    count = count_flops(graphs)
    modules = list(_module_rows(program, _flops_by_module(graphs[0], count)))
    picture, no_picture = None, ""
    try:
        picture = picture_of(graphs[0], program.root, count.by_node[graphs[0].id])
    except UnsupportedError as error:
        no_picture = str(error)
    number = sum(1 for row in modules if row.step != "close")
    return ProgramPart(
        name=program.name,
        facts=list(_program_facts(program, count)),
        tables={
            name: made
            for name, made in (
                ("Inputs", _values(program.inputs)),
                ("Outputs", _values(program.outputs)),
                ("Symbols", _symbols(program)),
                ("Guards", Table(("condition",), [(guard,) for guard in program.guards])),
                ("Weights", _weights(program)),
            )
            if made.rows
        },
        operators=_operator_bars(program),
        dtypes=_dtype_bars(program),
        modules=modules,
        modules_left=sum(1 for _ in lines_of(program.root)) - number,
        notes=[f"{why} ({counted_text(n, 'operator')})" for why, n in count.left_out.items()],
        picture=picture,
        no_picture=no_picture,
    )


def _program_facts(program: Program, count: Count) -> Iterator[tuple[str, str]]:
    yield "written by", f"torch {program.torch_version}" if program.torch_version else "not said"
    dialect = ", ".join(program.dialect)
    yield "schema", f"{program.schema_version}{', ' + dialect if dialect else ''}"
    yield "operators", f"{sum(program.operators.values()):,}"
    yield "parameters", f"{program.root.parameters:,}"
    yield "bytes of state", f"{program.root.bytes:,}"
    yield "FLOPs", f"{'at least ' if count.left_out else ''}{count.total:,}"


def _values(values: list[Value]) -> Table:
    rows = [(v.name, v.type, v.kind.replace("_", " "), v.target or "") for v in values]
    return Table(("name", "type", "kind", "of"), rows)


def _symbols(program: Program) -> Table:
    rows = [
        (symbol, "" if least is None else str(least), "" if most is None else str(most))
        for symbol, (least, most) in program.symbols.items()
    ]
    return Table(("symbol", "#least", "#greatest"), rows)


def _weights(program: Program) -> Table:
    rows = [
        (
            weight.name,
            weight.kind,
            str(weight.tensor),
            f"{_items(weight):,}",
            "" if weight.tensor.bytes is None else f"{weight.tensor.bytes:,}",
        )
        for weight in program.weights
    ]
    return Table(("name", "kind", "type", "#items", "#bytes"), rows)


def _bars(numbers: Iterable[tuple[str, int, str]]) -> list[Bar]:
    numbers = list(numbers)
    most = max((number for _, number, _ in numbers), default=0) or 1
    return [Bar(name, text, round(100 * number / most, 2)) for name, number, text in numbers]


def _operator_bars(program: Program) -> list[Bar]:
    shown = list(program.operators.items())[:_MOST_ROWS]
    return _bars((name.removeprefix("torch.ops."), n, f"{n:,}") for name, n in shown)


def _dtype_bars(program: Program) -> list[Bar]:
    sizes = Counter[str]()
    for kind in ("parameter", "buffer", "constant"):
        for weight in _distinct(program, kind):
            sizes[weight.tensor.dtype] += weight.tensor.bytes or 0
    return _bars((dtype, size, bytes_text(size)) for dtype, size in sizes.most_common(_MOST_ROWS))


def _flops_by_module(graph: Graph, count: Count) -> dict[str, str]:
    """Return the operations of each module that has some, with those of the modules in it.

    Where operators are left out they are "at least" a number, or not known at all.
    """
    numbers, left_out = Counter[str](), set[str]()
    by_node, unknown = count.by_node[graph.id], count.unknown[graph.id]
    for node in graph.nodes:
        around = [*_around(node.module)]
        left_out.update(around if node.id in unknown else ())
        for path in around if by_node.get(node.id) else ():
            numbers[path] += by_node[node.id]
    texts = {path: f"{number:,}" for path, number in numbers.items()}
    return texts | {p: f"\u2265 {texts[p]}" if p in texts else _NOT_KNOWN for p in left_out}


def _around(path: str) -> Iterator[str]:
    """Yield the path of a module, and those of the modules around it."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _module_rows(program: Program, flops: dict[str, str]) -> Iterator[ModuleRow]:
    waiting: list[tuple[int, Module | None]] = [(0, program.root)]
    written = 0
    while waiting:
        depth, module = waiting.pop()
        if module is None:
            yield ModuleRow("close")
            continue
        if written == _MOST_MODULES:
            continue
        written += 1
        inner = list(module.children.values()) if depth < _DEPTH else []
        yield ModuleRow(
            "open" if inner else "leaf",
            module.path.rpartition(".")[2] or "(root)",
            module.class_name or "",
            f"{module.operators:,}",
            f"{module.parameters:,}",
            f"{module.bytes:,}",
            flops.get(module.path, "0"),
            depth < _OPEN,
        )
        if inner:
            waiting.append((depth, None))
            waiting += [(depth + 1, each) for each in reversed(inner)]
