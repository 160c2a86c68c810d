"""Compare decompositions of programs with torch's, after a check that the results are equal."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram

import bench_capture
import fxpress
import graphs
from figures import Figure, Goal, growth
from fxpress import decompose
from timing import Action, interleaved, per_node, ratio

TABLES: dict[str, Any] = {"default table": None, "table `{}`": {}}


@dataclass(frozen=True)
class _Case:
    """A program to decompose, with the goals for the tables and for kept templates."""

    name: str
    program: ExportedProgram
    default: Goal
    empty: Goal


def _over(bound: float) -> Goal:
    return Goal(bound, more_is_better=True)


KEPT = _over(1.5)


def measure(layers: int, rounds: int, *, every_model: bool) -> list[Figure]:
    """Measure `run_decompositions` without kept templates, and with them.

    Args:
        layers: the number of layers of the transformer.
        rounds: how often each is measured.
        every_model: also measure the empty table, a CNN and, with `transformers`, a Llama, and
            larger programs.
    """
    case = _transformer(layers)
    figures = _measure_table(case, "default table", None, rounds, case.default)
    if every_model:
        figures += _measure_table(case, "table `{}`", {}, rounds, case.empty)
        for case in (*_further(2 * layers), _dynamic(layers // 2), _half_clean(layers // 2)):
            figures += _measure(case, rounds)
        figures.append(_measure_growth(rounds))
    return figures


def _transformer(layers: int) -> _Case:
    program, _ = graphs.transformer_program(layers)
    deep = layers >= 128
    goals = (_over(60 if deep else 30), _over(20))
    return _Case(f"transformer, {layers} layers", program, *goals)


def _further(blocks: int) -> list[_Case]:
    goals = {"CNN": (_over(25), _over(20)), "Llama": (_over(10), _over(8))}
    models = [bench_capture.convolutions(blocks), *bench_capture.llama()]
    return [
        _Case(
            model.name,
            torch.export.export(model.module, model.inputs, strict=False),
            *goals[model.name.partition(",")[0]],
        )
        for model in models
    ]


def _dynamic(layers: int) -> _Case:
    """Return a transformer with symbolic sizes; decompose it once, to cache the nodes' names."""
    shapes = [{0: Dim("batch"), 1: Dim("sequence")}]
    inputs = (torch.randn(2, 8, graphs.WIDTH),)
    program = torch.export.export(_layers(layers), inputs, dynamic_shapes=shapes, strict=False)
    for table in TABLES.values():
        decompose.run_decompositions(program, table)
    name = f"transformer, {layers} layers, dynamic batch and sequence"
    return _Case(name, program, _over(5), _over(5))


def _half_clean(layers: int) -> _Case:
    """Return a transformer in which every second layer gets an input that is written."""

    class Half(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layers = _layers(layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i, layer in enumerate(self.layers):
                x = layer(x.relu_() if i % 2 else x)
            return x

    inputs = (torch.randn(2, 8, graphs.WIDTH),)
    program = torch.export.export(Half().eval(), inputs, strict=False)
    name = f"transformer, {layers} layers, every second one with a write to its input"
    return _Case(name, program, _over(2), _over(2))


def _layers(count: int) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (graphs.Layer(graphs.WIDTH, graphs.HEADS) for _ in range(count))
    return nn.Sequential(*layers).eval()


def _measure(case: _Case, rounds: int) -> list[Figure]:
    figures = []
    for table, given in TABLES.items():
        goal = case.default if given is None else case.empty
        figures += _measure_table(case, table, given, rounds, goal)
    return figures


def _measure_table(case: _Case, table: str, given: Any, rounds: int, goal: Goal) -> list[Figure]:
    program = case.program
    with fxpress.installed(), decompose.check_templates():
        made = program.run_decompositions(given)
    nodes = len(made.graph.nodes)
    assert not decompose.report().reason, decompose.report()
    seconds = interleaved(
        {
            "cold": installed(program, given, keep=False),
            "kept": installed(program, given, keep=True),
            "torch": processor_time(program, given),
        },
        rounds,
    )
    return [
        Figure(
            case.name,
            f"`run_decompositions`, {table}, new templates",
            "us/node",
            per_node(seconds["cold"], nodes),
            per_node(seconds["torch"], nodes),
            ratio(seconds["torch"], seconds["cold"]),
            rounds,
            goal,
            "run_decompositions" if given is None else "",
            nodes,
        ),
        Figure(
            case.name,
            f"`run_decompositions`, {table}, kept templates, compared with new templates",
            "us/node",
            per_node(seconds["kept"], nodes),
            per_node(seconds["cold"], nodes),
            ratio(seconds["cold"], seconds["kept"]),
            rounds,
            KEPT,
            sides="new / kept templates",
        ),
    ]


def _measure_growth(rounds: int) -> Figure:
    """Measure the time per node for programs of several sizes."""
    times: dict[int, list[float]] = {}
    for layers in (32, 64, 128):
        program, _ = graphs.transformer_program(layers)
        action = installed(program, None, keep=True)
        action()
        nodes = len(program.graph.nodes)
        times[nodes] = [action() / nodes for _ in range(rounds)]
    what = "`run_decompositions` of a transformer, default table, kept templates"
    return growth(what, times, rounds)


def processor_time(program: ExportedProgram, table: Any) -> Action:
    """Return an action that times a decomposition."""

    def action() -> float:
        start = time.process_time()
        made = program.run_decompositions(table)
        seconds = time.process_time() - start
        del made
        return seconds

    return action


def installed(program: ExportedProgram, table: Any, *, keep: bool) -> Action:
    """Return an action that times the installed function, with or without kept templates."""
    timed = processor_time(program, table)

    def action() -> float:
        if not keep:
            decompose.forget_templates()
        with fxpress.installed():
            return timed()

    return action
