"""Compute values for nodes, such as FLOPs: the functions of `fxpress.view.data`."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from fxpress._files.archive.files import write_file
from fxpress._tools.view.comparison import compare, differences_of
from fxpress._tools.view.nodes import Graph, Node
from fxpress._tools.view.overlays import Overlay, by_module, marked, overlays_of, shaded
from fxpress._tools.view.sources import source_of

if TYPE_CHECKING:
    from fxpress._graphs.decompose.report import Report
    from fxpress._graphs.tracking.reuse.report import ReuseReport

_ROOT = "L['self']"  # the root of the paths in a `ReuseReport`
_EXPORT_ROOT = "_export_root"
_RUN = "a run of fxpress.view.data.times"
_AHEAD = 50  # the maximum number of consecutive operators without an event in a profile


def overlays(program: Any) -> dict[str, Overlay]:
    """Return the overlays that are computed from a program alone.

    The overlays are bytes of state, bytes of results, FLOPs, kinds of operators, and partitions if
    modules have the names that `split_module` gives to partitions. torch has no such function.

    Args:
        program: a path or an ExportedProgram.

    Raises:
        OSError, fxpress.Error, TypeError: as `fxpress.view.graphs_of` raises them.

    Example:
        >>> from fxpress.view import data
        >>> sorted(data.overlays(program))
        ['FLOPs', 'bytes of results', 'bytes of state', 'kind of operator']
    """
    return overlays_of(source_of(program, "program").graphs)


def difference(first: Any, second: Any) -> tuple[Overlay, Overlay]:
    """Return overlays that mark where two programs differ. torch has no such function.

    A node is "same" if both programs compute its value, "follows" if only the values that it uses
    differ, "only here" if it lacks a counterpart, otherwise "changed". Names are ignored.

    Args:
        first, second: paths or ExportedPrograms.

    Raises:
        OSError, fxpress.Error, TypeError: as `fxpress.view.graphs_of`; or a program cannot be
            hashed.

    Example:
        >>> from fxpress.view import data
        >>> gelu = torch.export.export(torch.nn.GELU(), (x,))
        >>> relu = torch.export.export(torch.nn.ReLU(), (x,))
        >>> _, marks = data.difference(gelu, relu)
        >>> [mark["value"] for graph in marks.values() for mark in graph["results"].values()]
        ['same', 'changed', 'follows']
    """
    sources = source_of(first, "first"), source_of(second, "second")
    for each in sources:
        each.hashes()  # raises an error that `compare` would only report
    return differences_of(*sources, compare(*sources))


def times(program: Any, *args: Any, runs: int = 3, **kwargs: Any) -> Overlay:
    """Run a program on fxpress's engine; return an overlay with each operator's microseconds.

    The program is unflattened, runs once to warm up, and then under torch's profiler. A time is the
    median of the measured runs, on the CPU. Operators that the engine does not call through torch's
    dispatcher have no time. torch has no such function.

    Args:
        program: an ExportedProgram.
        args, kwargs: the inputs of the program.
        runs: the number of measured runs.

    Raises:
        ValueError: `runs` is not positive.
        OSError, fxpress.Error, TypeError: as `fxpress.view.graphs_of` raises them.
        Exception: any error of the program for these inputs.

    Example:
        >>> from fxpress.view import data
        >>> (measured,) = data.times(program, x, runs=1).values()
        >>> all(time["value"] > 0 for time in measured["results"].values())
        True
    """
    if runs < 1:
        raise ValueError(f"expected runs to be positive, got {runs}")
    graph = _graph(program)
    operators = [node for node in graph.nodes if node.target is not None]
    names = [_event_name(node) for node in operators]
    found: dict[str, list[float]] = {}
    for events in _events_of_runs(program, args, kwargs, runs):
        for number, microseconds in _aligned(names, events):
            found.setdefault(operators[number].id, []).append(microseconds)
    return {graph.id: shaded({node: round(median(each), 3) for node, each in found.items()})}


def reuse(program: Any, report: ReuseReport) -> Overlay:
    """Return an overlay that shows which module calls were repeated. torch has no such function.

    Args:
        program: a path or an ExportedProgram that strict export created.
        report: the result of `fxpress.functional_export.reuse_report()` after that export.

    Raises:
        OSError, fxpress.Error, TypeError: as `fxpress.view.graphs_of` raises them.

    Example:
        >>> from fxpress.functional_export import reuse_report
        >>> from fxpress.view import data
        >>> with fxpress.installed():
        ...     strict = torch.export.export(model, (x,), strict=True)
        >>> (marks,) = data.reuse(strict, reuse_report()).values()
        >>> marks["results"]["node 0"]["value"]
        'traced: no earlier call is equivalent'
    """
    texts = {
        _path(call.path): f"instantiated from {_path(call.instantiated_from)}"
        if call.instantiated_from is not None
        else f"traced: {call.reason}"
        for call in report.calls
    }
    return by_module(_graph(program), texts)


def decomposition(program: Any, report: Report) -> Overlay:
    """Return for each node how many calls of its original operator were instantiated.

    An instantiated call repeats a decomposition that was traced before. The report counts calls by
    operator, so nodes decomposed from one operator have one text. torch has no such function.

    Args:
        program: a path or an ExportedProgram, the result of `run_decompositions`.
        report: the result of `fxpress.decompose.report()` after this `run_decompositions`.

    Raises:
        OSError, fxpress.Error, TypeError: as `fxpress.view.graphs_of` raises them.

    Example:
        >>> from fxpress import decompose
        >>> from fxpress.view import data
        >>> decomposed = decompose.run_decompositions(program)
        >>> (marks,) = data.decomposition(decomposed, decompose.report()).values()
        >>> marks["results"]["node 0"]["value"]
        'of all 2 calls of aten.layer_norm.default, 2 were instantiated'
    """
    graph = _graph(program)
    latest = {node.id: node.ancestors[0] for node in graph.nodes if node.ancestors}
    known = {node: each for node, each in latest.items() if each.target}
    calls = Counter(operator for _, operator in {each[:2] for each in known.values()})
    values = {
        node: f"of all {calls[each.target]} calls of {each.target.removeprefix('torch.ops.')}, "
        f"{report.by_operator.get(each.target, 0)} were instantiated"
        for node, each in known.items()
    }
    return marked(graph, values)


def write_overlays(
    folder: str | bytes | os.PathLike[str], overlays: Mapping[str, Overlay]
) -> list[Path]:
    """Write overlays for Model Explorer; return the files' paths. torch has no such function.

    Args:
        folder: the folder, which is created if it is missing.
        overlays: name -> overlay; a file is named after the name of its overlay.

    Raises:
        OSError: a file cannot be written.

    Example:
        >>> from fxpress.view import data
        >>> for path in data.write_overlays("overlays", data.overlays(program)):
        ...     print(path)
        overlays/bytes_of_state.json
        overlays/bytes_of_results.json
        overlays/FLOPs.json
        overlays/kind_of_operator.json
    """
    Path(os.fsdecode(folder)).mkdir(parents=True, exist_ok=True)
    paths = []
    for name, overlay in overlays.items():
        paths.append(Path(os.fsdecode(folder), f"{name.replace(' ', '_')}.json"))
        write_file(paths[-1], json.dumps(overlay))
    return paths


def _graph(program: Any) -> Graph:
    return source_of(program, "program").all_graphs()[0]


def _path(text: str) -> str:
    """Convert the path of a module in a report to its path in the program."""
    parts = text.removeprefix(_ROOT).split(".")
    return ".".join(part for part in parts if part not in ("", _EXPORT_ROOT))


def _event_name(node: Node) -> str:
    """Return the name of a node's operator in torch's profiles."""
    library, _, name = (node.target or "").partition(".")
    return f"{library}::{name.partition('.')[0]}"


def _events_of_runs(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], runs: int
) -> list[list[tuple[str, float]]]:
    """Return, for each run, the operators that it called, in order, and their microseconds.

    The time of an operator includes the operators that it calls.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile, record_function

    from fxpress._graphs.unflatten.modules import unflatten

    module = unflatten(program)
    with torch.no_grad():
        module(*args, **kwargs)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(runs):
                with record_function(_RUN):
                    module(*args, **kwargs)
    found = []
    for run in (event for event in profiled.events() if event.name == _RUN):
        called = [event for event in run.cpu_children if "::" in event.name]
        called.sort(key=lambda event: event.time_range.start)
        found.append([(each.name, each.time_range.elapsed_us()) for each in called])
    return found


def _aligned(names: Sequence[str], events: Sequence[tuple[str, float]]) -> list[tuple[int, float]]:
    """Return (index in `names`, microseconds) for each event of a run whose operator is found."""
    found, place = [], 0
    for name, microseconds in events:
        ahead = range(place, min(place + _AHEAD, len(names)))
        number = next((i for i in ahead if names[i] == name), None)
        if number is not None:
            found.append((number, microseconds))
            place = number + 1
    return found
