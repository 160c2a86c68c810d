"""Forward passes of unflattened modules: the engine against eager and torch's Interpreter."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import graphs
from figures import Figure, Goal
from fxpress import _engine
from timing import interleaved, per_node, ratio, stopwatch

DEPTH = 32  # layers of the models measured here
REPEATS = 4  # runs in one measurement, so that the clock's reading is small beside it
INTERPRETER_ROUNDS = 5

NO_GRAD = Goal(0.7, aim=0.55)
GRAD = Goal(0.9)
LARGE = Goal(1.02)  # never slower; within the noise of a measurement

Run = Callable[[], Any]


@dataclass(frozen=True)
class Model:
    """A model in its two forms.

    Attributes:
        name: as it is called in the table.
        eager: the module that was exported.
        module: what torch's unflatten made of it.
        inputs: positional arguments of both.
        operators: how many the graph calls.
    """

    name: str
    eager: nn.Module
    module: Any
    inputs: tuple[torch.Tensor, ...]
    operators: int


def transformer(depth: int = DEPTH, width: int = graphs.WIDTH, length: int = 8) -> Model:
    """A transformer; with the small defaults, nearly all of its time is overhead."""
    torch.manual_seed(0)
    layers = (graphs.Layer(width, graphs.HEADS) for _ in range(depth))
    eager = nn.Sequential(*layers).eval()
    inputs = (torch.randn(2, length, width),)
    program = torch.export.export(eager, inputs, strict=False)
    operators = sum(n.op == "call_function" for n in program.graph.nodes)
    name = f"transformer, {depth} layers, width {width}"
    return Model(name, eager, torch.export.unflatten(program), inputs, operators)


def measure(rounds: int) -> list[Figure]:
    """Everything: an overhead-bound model without and with autograd, and a large one."""
    small = transformer()
    large = transformer(4, 512, 128)
    return [
        *measure_forward(small, rounds, torch.no_grad(), "no_grad", NO_GRAD),
        *measure_forward(small, rounds, torch.enable_grad(), "grad", GRAD),
        *measure_forward(large, rounds, torch.no_grad(), "no_grad", LARGE),
        *measure_interpreter(small, min(rounds, INTERPRETER_ROUNDS)),
    ]


def measure_forward(
    model: Model, rounds: int, mode: AbstractContextManager[Any], label: str, goal: Goal
) -> list[Figure]:
    """The engine's run of the graph, against the eager module."""
    ours = _engine_run(model)
    with mode:
        _assert_same_result(model, ours)
        seconds = _timed({"ours": ours, "eager": lambda: model.eager(*model.inputs)}, rounds)
    return [_figure(model, f"forward / eager, {label}", seconds, "eager", goal)]


def measure_interpreter(model: Model, rounds: int) -> list[Figure]:
    """The engine's run of the graph, against torch's."""
    ours, module = _engine_run(model), model.module
    values = _values(model)
    with torch.no_grad():

        def theirs() -> Any:
            interpreter = torch.fx.Interpreter(module, graph=module.graph)
            return interpreter.run(*values, enable_io_processing=False)

        seconds = _timed({"ours": ours, "torch": theirs}, rounds)
    return [_figure(model, "forward / Interpreter, no_grad", seconds, "torch", None)]


def _values(model: Model) -> tuple[Any, ...]:
    return tuple(model.module.process_forward_inputs(*model.inputs))


def _engine_run(model: Model) -> Run:
    _register_torch_modules()
    module, values = model.module, _values(model)
    return lambda: _engine.run(module, module.graph, values)


def _register_torch_modules() -> None:
    """Let torch's own unflattened modules be inlined; their forward does what ours does."""
    import importlib

    room: Any = importlib.import_module("torch.export.unflatten")
    _engine.register_forward(vars(room.InterpreterModule)["forward"])
    _engine.register_forward(vars(room.InterpreterModuleDispatcher)["forward"], dispatches=True)


def _assert_same_result(model: Model, ours: Run) -> None:
    result = ours()
    (result,) = result if isinstance(result, (tuple, list)) else (result,)
    expected = model.eager(*model.inputs)
    assert torch.equal(result, expected)
    assert result.requires_grad == expected.requires_grad
    info = _engine.plan_info(model.module.graph)
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
    run()  # once ahead, behind the garbage collection that emptied the caches

    def action() -> float:
        run()
        return timed() / REPEATS

    return action


def _figure(
    model: Model, what: str, seconds: dict[str, list[float]], other: str, goal: Goal | None
) -> Figure:
    return Figure(
        model.name,
        what,
        "us/op",
        per_node(seconds["ours"], model.operators),
        per_node(seconds[other], model.operators),
        ratio(seconds["ours"], seconds[other]),
        len(seconds["ours"]),
        goal,
    )


if __name__ == "__main__":
    for figure in measure(21):
        assert figure.ratio is not None
        print(
            f"{figure.model:38} {figure.what:32} {figure.ours:7.2f} {figure.other:7.2f} "
            f"{figure.unit}  {figure.ratio.median:.2f}x ({figure.ratio.low:.2f} to "
            f"{figure.ratio.high:.2f})  {figure.goal or ''}"
        )
