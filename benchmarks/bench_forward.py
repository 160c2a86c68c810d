"""Compare forward passes of unflattened modules with eager and torch's unflattened modules."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch

import programs
from figures import Figure, Goal
from fxpress._graphs import engine
from fxpress.export import module
from fxpress.unflatten import unflatten
from programs import Program
from timing import interleaved, per_node, ratio, stopwatch

DEPTH = 32  # layers of the models measured here
REPEATS = 4  # runs in one measurement, so that reading the clock does not matter
INTERPRETER_ROUNDS = 5

NO_GRAD = Goal(0.7, aim=0.55)
GRAD = Goal(0.9)
LARGE = Goal(1.02)  # not slower than eager; 2% for noise

Run = Callable[[], Any]


class Model:
    """A program as an unflattened and as a flat module, and the eager module that was exported."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.ours = unflatten(program.program)
        self.flat = module(program.program, engine=True)

    def run_ours(self) -> torch.Tensor:
        result: torch.Tensor = self.ours(*self.program.inputs)
        return result

    def run_flat(self) -> torch.Tensor:
        result: torch.Tensor = self.flat(*self.program.inputs)
        return result

    def run_eager(self) -> torch.Tensor:
        assert self.program.eager is not None
        result: torch.Tensor = self.program.eager(*self.program.inputs)
        return result


def measure(rounds: int, *, every_model: bool) -> list[Figure]:
    """Measure a model of tiny tensors, without and with autograd; if `every_model`, a large one."""
    small = Model(programs.transformer(DEPTH))
    figures = [
        *measure_interpreter(small, min(rounds, INTERPRETER_ROUNDS)),
        *measure_forward(small, rounds, torch.no_grad(), "without autograd", NO_GRAD),
        *measure_forward(small, rounds, torch.enable_grad(), "with autograd", GRAD),
    ]
    if every_model:
        large = Model(programs.transformer(4, 512, 128))
        figures += measure_forward(large, rounds, torch.no_grad(), "without autograd", LARGE)
    return figures


def measure_forward(
    model: Model, rounds: int, mode: AbstractContextManager[Any], label: str, goal: Goal
) -> list[Figure]:
    """Compare the unflattened module, and the flat one on the engine, with the eager module."""
    with mode:
        _assert_same_result(model)
        runs = {"ours": model.run_ours, "flat": model.run_flat, "eager": model.run_eager}
        seconds = _timed(runs, rounds)
    flat = {"ours": seconds["flat"], "eager": seconds["eager"]}
    return [
        _figure(model, f"forward of the unflattened module, {label}", seconds, "eager", goal),
        _figure(model, f"forward of `module(engine=True)`, {label}", flat, "eager", goal),
    ]


def measure_interpreter(model: Model, rounds: int) -> list[Figure]:
    """Compare the unflattened module with torch's, which runs on `torch.fx.Interpreter`."""
    theirs = torch.export.unflatten(model.program.program)
    with torch.no_grad():
        run = {"ours": model.run_ours, "torch": lambda: theirs(*model.program.inputs)}
        seconds = _timed(run, rounds)
    operation = "forward of the unflattened module"
    figure = _figure(model, f"{operation}, without autograd", seconds, "torch", None)
    return [replace(figure, operation=operation)]


def _assert_same_result(model: Model) -> None:
    result, expected = model.run_ours(), model.run_eager()
    assert torch.equal(result, expected)
    assert torch.equal(model.run_flat(), expected)
    assert result.requires_grad == expected.requires_grad
    info = engine.plan_info(model.ours.graph)
    assert info is not None
    assert info["inlined"] > 0, "the submodules are not inlined"


def _timed(runs: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return interleaved({name: _repeated(run) for name, run in runs.items()}, rounds)
    finally:
        torch.set_num_threads(threads)


def _repeated(run: Run) -> Callable[[], float]:
    def repeat() -> None:
        for _ in range(REPEATS):
            run()

    timed = stopwatch(repeat)
    run()  # warms up the caches, which the preceding garbage collection has emptied

    def action() -> float:
        run()
        return timed() / REPEATS

    return action


def _figure(
    model: Model, what: str, seconds: dict[str, list[float]], other: str, goal: Goal | None
) -> Figure:
    ours, theirs = seconds["ours"], seconds[other]
    operators = model.program.operators
    return Figure(
        model.program.name,
        what,
        "us/op",
        per_node(ours, operators),
        per_node(theirs, operators),
        ratio(ours, theirs) if other == "eager" else ratio(theirs, ours),
        len(ours),
        goal,
        sides="fxpress / eager module" if other == "eager" else "torch / fxpress",
    )
