"""Compare split_module and split_module_simple with torch's, many times in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule

import splits
from compare import assert_same_split, graph_modules
from figures import (
    FIRST_FORWARD,
    OVER_LAZY,
    SOURCE,
    SPLIT_OVER_LAZY,
    SPLIT_OVER_TORCH,
    Figure,
    Goal,
)
from fxpress import _native
from graphs import Case
from timing import interleaved, per_node, ratio, stopwatch

Split = Callable[[Case], GraphModule]


def measure_split(case: Case, rounds: int) -> list[Figure]:
    """Measure only the call; compare it with torch's split, without and with lazy modules."""
    split = splits.ours(case)
    assert_same_split(split, splits.torch_default(case), case.inputs)
    assert_same_split(split, splits.torch_lazy(case), case.inputs)
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: splits.ours(case)),
            "torch": stopwatch(lambda: splits.torch_default(case)),
            "lazy": stopwatch(lambda: splits.torch_lazy(case)),
        },
        rounds,
    )
    return [
        _figure(
            case, "`split_module`", seconds, "torch", SPLIT_OVER_TORCH, operation="split_module"
        ),
        _figure(case, "`split_module`", seconds, "lazy", SPLIT_OVER_LAZY),
    ]


def measure_simple(case: Case, rounds: int) -> list[Figure]:
    """Measure split_module_simple, which takes graphs without parameters."""
    assert_same_split(splits.ours_simple(case), splits.torch_simple(case), case.inputs)
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: splits.ours_simple(case)),
            "torch": stopwatch(lambda: splits.torch_simple(case)),
        },
        rounds,
    )
    return [_figure(case, "`split_module_simple`", seconds, "torch")]


def measure_first_forward(case: Case, rounds: int) -> list[Figure]:
    """Measure the call and the first forward of its result."""
    assert_same_split(splits.ours(case), splits.torch_default(case), case.inputs)

    def split_and_run(split: Split) -> tuple[GraphModule, Any]:
        result = split(case)
        return result, result(*case.inputs)

    with torch.no_grad():
        seconds = interleaved(
            {
                "ours": stopwatch(lambda: split_and_run(splits.ours)),
                "torch": stopwatch(lambda: split_and_run(splits.torch_default)),
            },
            rounds,
        )
    what = "`split_module` and the first forward of its result"
    return [_figure(case, what, seconds, "torch", FIRST_FORWARD)]


def measure_source(case: Case, rounds: int) -> list[Figure]:
    """Measure the time per node to generate the source of all graphs of a split."""
    ours, theirs = splits.ours(case), splits.torch_default(case)
    assert_same_split(ours, theirs, case.inputs)
    graphs = [module.graph for module in graph_modules(ours)]
    left = [graph for graph in graphs if _native.python_source(graph) is None]
    assert not left, f"{len(left)} graphs are left to torch's generator"
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: [_native.python_source(graph) for graph in graphs]),
            "torch": stopwatch(lambda: [graph.python_code("self") for graph in graphs]),
        },
        rounds,
    )
    nodes = sum(len(graph.nodes) for graph in graphs)
    what = "generation of the source text of all graphs of a split, for each node of these graphs"
    return [_figure(case, what, seconds, "torch", SOURCE, nodes=nodes)]


def _figure(
    case: Case,
    what: str,
    seconds: dict[str, list[float]],
    other: str,
    goal: Goal | None = None,
    *,
    nodes: int | None = None,
    operation: str = "",
) -> Figure:
    nodes = nodes or case.nodes
    ours = seconds["ours"]
    return Figure(
        case.name,
        what,
        "us/node",
        per_node(ours, nodes),
        per_node(seconds[other], nodes),
        ratio(seconds[other], ours),
        len(ours),
        goal,
        operation,
        sides=OVER_LAZY if other == "lazy" else "torch / fxpress",
    )
