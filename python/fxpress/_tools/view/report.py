"""Collect the data about programs that the page shows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fxpress import _native
from fxpress._base.observing.text import bytes_text, counted_text
from fxpress._tools.inspect.modules import lines_of
from fxpress._tools.inspect.program import Program, Value
from fxpress._tools.inspect.summary import UNOPENED, Summary
from fxpress._tools.view.flops import Count, count_flops
from fxpress._tools.view.kinds import partition_of
from fxpress._tools.view.nodes import Graph, Node, TensorFacts
from fxpress._tools.view.sources import Source

_NOT_KNOWN = "\u2013"
Table = dict[str, Any]  # "head": column names, with the prefix "#" for numbers; "rows"


class Values:
    """Assigns numbers to nodes' texts and to values' types; nodes contain only the numbers."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self._types: dict[TensorFacts | None, int] = {}

    def types(self) -> list[dict[str, str]]:
        """Return, for each type, the properties that are shown."""
        return [{} if each is None else each.shown() for each in self._types]

    def text(self, text: str) -> int:
        """Return the number that identifies a text."""
        return self.texts.setdefault(text, len(self.texts))

    def pairs(self, pairs: Iterable[tuple[str, str]]) -> list[int]:
        """Return the numbers that identify names and texts."""
        return [self.text(text) for pair in pairs for text in pair]

    def type(self, tensor: TensorFacts | None) -> int:
        """Return the number that identifies a type."""
        return self._types.setdefault(tensor, len(self._types))


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """Return a table with these column names and rows."""
    return {"head": head, "rows": list(rows)}


def file_part(source: Source, values: Values) -> dict[str, Any]:
    """Describe a source; OSError or InspectionError if its file can no longer be read."""
    summary = source.summary()
    parts = [
        _program(program, source.graphs[program.name], values)
        for program in summary.programs
        if program.name in source.graphs
    ]
    return {"name": source.name, "facts": list(_file_facts(summary)), "programs": parts}


def _file_facts(summary: Summary) -> Iterator[tuple[str, str]]:
    version = f", version {summary.format_version}" if summary.format_version else ""
    yield "kind", f"{summary.kind}{version}"
    if summary.bytes:
        yield "size", f"{bytes_text(summary.bytes)} in {counted_text(summary.records, 'record')}"
    if summary.compiled:
        yield "compiled models", ", ".join(summary.compiled)
    files = [f"{name} ({bytes_text(size)})" for name, size in summary.extra_files.items()]
    if files:
        yield "extra files", ", ".join(files)
    if summary.runs:
        yield UNOPENED, ", ".join(f"{record} ({what})" for record, what in summary.runs.items())


def _program(program: Program, graphs: list[Graph], values: Values) -> dict[str, Any]:
    count = count_flops(graphs)
    examples = _examples(graphs)
    numbers = {each.path: number for number, (_, each) in enumerate(lines_of(program.root))}
    positions = {graph.id: number for number, graph in enumerate(graphs)}
    tables = {
        "Inputs": _values(program.inputs),
        "Outputs": _values(program.outputs),
        "Symbols": _symbols(program, examples),
        "Guards": table(("condition",), [(guard,) for guard in program.guards]),
    }
    state = {
        "Bytes by type of weights": _dtypes(program),
        "Weights": _weights(program),
        "Partitions": _partitions(graphs[0], count.by_node[graphs[0].id]),
    }
    return {
        "name": program.name,
        "operators": {k.removeprefix("torch.ops."): n for k, n in program.operators.items()},
        "facts": list(_program_facts(program, count, examples)),
        "notes": [f"{why} ({counted_text(n, 'operator')})" for why, n in count.left_out.items()],
        "tables": {name: made for name, made in tables.items() if made["rows"]},
        "state": {name: made for name, made in state.items() if made["rows"]},
        "modules": list(_modules(program, numbers, _flops_by_module(graphs[0], count))),
        "graphs": [
            {
                "id": graph.id.removeprefix(f"{graphs[0].id}/"),
                "inputs": sum(1 for node in graph.nodes if node.id.startswith("input ")),
                "nodes": _nodes(graph, count.by_node[graph.id], numbers, positions, values),
            }
            for graph in graphs
        ],
    }


def _nodes(
    graph: Graph,
    flops: dict[str, int],
    modules: dict[str, int],
    graphs: dict[str, int],
    values: Values,
) -> list[list[Any]]:
    """Return the nodes of a graph as lists; NODE in page.js names the items of a list."""
    numbers = {node.id: number for number, node in enumerate(graph.nodes)}
    paths = {node.module for node in graph.nodes}
    inner = {path: next(modules[p] for p in _around(path) if p in modules) for path in paths}
    with _native.GcPause():  # none of the lists are garbage at the end
        return [
            [
                values.text(_name_of(node)),
                values.text(node.target or ""),
                inner[node.module],
                values.pairs((*node.identity(), *_operations(flops.get(node.id)))),
                [
                    number
                    for each in node.arguments
                    for number in (values.text(each.name), numbers[each.node.id], each.output)
                ],
                values.pairs(node.constants),
                [
                    number
                    for each in node.results
                    for number in (values.text(each.name), values.type(each.tensor))
                ],
                values.pairs(node.origin()),
                [graphs[body.id] for body in node.bodies],
            ]
            for node in graph.nodes
        ]


def _name_of(node: Node) -> str:
    """Return the name of a node, or of its first result, or its label."""
    return node.name or (node.results[0].name if node.results else node.label)


def _operations(number: int | None) -> list[tuple[str, str]]:
    return [("FLOPs", f"{number:,}")] if number else []


def _program_facts(
    program: Program, count: Count, examples: dict[str, int]
) -> Iterator[tuple[str, str]]:
    yield "written by", f"torch {program.torch_version}" if program.torch_version else "unknown"
    dialect = ", ".join(program.dialect)
    yield "schema", f"{program.schema_version}{', ' + dialect if dialect else ''}"
    yield "operators", f"{sum(program.operators.values()):,}"
    yield "parameters", f"{program.root.parameters:,}"
    yield "bytes of state", f"{program.root.bytes:,}"
    sizes = ", ".join(f"{symbol} = {size:,}" for symbol, size in examples.items())
    total = f"{'at least ' if count.left_out else ''}{count.total:,}"
    yield "FLOPs", f"{total} with {sizes}" if sizes else total


def _examples(graphs: list[Graph]) -> dict[str, int]:
    """Return symbol -> its value for the example inputs, for symbols that are sizes."""
    tensors = {v.tensor for g in graphs for node in g.nodes for v in node.results if v.tensor}
    found = {
        size: example
        for tensor in tensors
        for size, example in zip(tensor.tensor.shape, tensor.examples, strict=True)
        if isinstance(size, str) and size.isidentifier() and example is not None
    }
    return dict(sorted(found.items()))


def _values(values: list[Value]) -> Table:
    rows = [(v.name, v.type, v.kind.replace("_", " "), v.target or "") for v in values]
    return table(("name", "type", "kind", "of"), rows)


def _symbols(program: Program, examples: dict[str, int]) -> Table:
    rows = [
        (symbol, *("" if n is None else f"{n}" for n in (*bounds, examples.get(symbol))))
        for symbol, bounds in program.symbols.items()
    ]
    return table(("symbol", "#least", "#greatest", "#example"), rows)


def _dtypes(program: Program) -> Table:
    sizes = Counter[str]()
    for weight in program.weights:
        if weight.tied_to is None:
            sizes[weight.tensor.dtype] += weight.tensor.bytes or 0
    return table(("type", "#bytes"), [(dtype, f"{n:,}") for dtype, n in sizes.most_common()])


def _weights(program: Program) -> Table:
    rows = [
        (
            weight.name,
            weight.kind,
            str(weight.tensor),
            f"{math.prod(size for size in weight.tensor.shape if isinstance(size, int)):,}",
            "" if weight.tensor.bytes is None else f"{weight.tensor.bytes:,}",
        )
        for weight in program.weights
    ]
    return table(("name", "kind", "type", "#items", "#bytes"), rows)


def _partitions(graph: Graph, flops: dict[str, int]) -> Table:
    """Return a table of `split_module`'s partitions and the values that pass between them."""
    numbers = {node.id: partition_of(node.module) for node in graph.nodes}
    operators, operations = Counter[int](), Counter[int]()
    state: dict[int, dict[str, int]] = {}
    taken: dict[int, dict[int, dict[tuple[str, int], int]]] = {}
    for node in graph.nodes:
        number = numbers[node.id]
        if number is None or node.target is None:
            continue
        operators[number] += 1
        operations[number] += flops.get(node.id, 0)
        for each in node.arguments:
            source = each.node
            if source.state:
                state.setdefault(number, {})[source.id] = source.result_bytes() or 0
            elif (other := numbers[source.id]) is not None and other != number:
                values = taken.setdefault(number, {}).setdefault(other, {})
                values[source.id, each.output] = each.value.bytes or 0
    rows = [
        (
            f"submod_{number}",
            f"{operators[number]:,}",
            f"{sum(state.get(number, {}).values()):,}",
            f"{operations[number]:,}",
            "\n".join(
                f"submod_{other}: {counted_text(len(values), 'value')}, "
                f"{bytes_text(sum(values.values()))}"
                for other, values in sorted(taken.get(number, {}).items())
            ),
        )
        for number in sorted(operators)
    ]
    return table(("partition", "#operators", "#bytes of state", "#FLOPs", "takes from"), rows)


def _flops_by_module(graph: Graph, count: Count) -> dict[str, str]:
    """Return the FLOPs of each module that has any, including its submodules' FLOPs.

    If some operators are not counted, the text is "≥" and a number, or `_NOT_KNOWN`.
    """
    numbers, left_out = Counter[str](), set[str]()
    by_node, unknown = count.by_node[graph.id], count.unknown[graph.id]
    for node in graph.nodes:
        if number := by_node.get(node.id):
            numbers.update(dict.fromkeys(_around(node.module), number))
        if node.id in unknown:
            left_out.update(_around(node.module))
    texts = {path: f"{number:,}" for path, number in numbers.items()}
    return texts | {p: f"\u2265 {texts[p]}" if p in texts else _NOT_KNOWN for p in left_out}


def _around(path: str) -> Iterator[str]:
    """Yield the path of a module, then the paths of its parents, the root's last."""
    while path:
        yield path
        path = path.rpartition(".")[0]
    yield ""


def _modules(
    program: Program, numbers: dict[str, int], flops: dict[str, str]
) -> Iterator[tuple[Any, ...]]:
    """Yield (number of the parent, path, class, counts) for each module, parents first."""
    for _, module in lines_of(program.root):
        yield (
            numbers[module.path.rpartition(".")[0]],
            module.path,
            module.class_name or "",
            f"{module.parameters:,}",
            f"{module.bytes:,}",
            f"{module.operators:,}",
            flops.get(module.path, "0"),
        )
