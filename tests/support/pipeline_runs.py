"""Run the cases of `pipeline_models` in one process, and in stages on ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from fxpress import pipeline
from tests.support.pipeline_models import CASES
from tests.support.pipelines import optimizer_of

PARTS = 8  # microbatches; DualPipeV needs at least one for each stage
_OF_A_RANK = {"GPipe": 1, "1F1B": 1}
SCHEDULES = (
    *("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble"),
    "DualPipeV",
)


def stages_of(schedule: str, size: int) -> int:
    """Return the number of stages with which a schedule is tested on `size` ranks."""
    return size * _OF_A_RANK.get(schedule, 2)


def save_cases(folder: Path, names: list[str], sizes: tuple[int, ...]) -> dict[str, Any]:
    """Save the stages of cases, and return their programs by name."""
    programs = {name: CASES[name].program() for name in names}
    for name, program in programs.items():
        for count in {size * each for size in sizes for each in (1, 2)}:
            pipeline.save_stages(program, folder / f"{name}_{count}", count)
    return programs


def tensors_in(results: Any) -> list[Tensor]:
    """Return the tensors in the result of a program, detached."""
    leaves = pytree.tree_leaves(results)
    return [leaf.detach() for leaf in leaves if isinstance(leaf, Tensor)]


def whole(name: str, program: ExportedProgram, steps: int, every: int = 1) -> dict[str, Any]:
    """Run the unsplit program, microbatch by microbatch.

    Args:
        name: the name of the case.
        program: the program of the case.
        steps: the number of training steps.
        every: the number of training steps for each step of the optimizer.
    """
    case, module = CASES[name], program.module()
    inputs, _ = case.batches(1)[0]
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with torch.no_grad():
        forward = [tensors_in(module(*a, **k)) for a, k in parts_of(name, inputs)]
    module.load_state_dict(before)
    optimizer = optimizer_of(module.parameters())
    losses = []
    for number, (inputs, target) in enumerate(case.batches(steps)):
        given = {each: each.grad for each in module.parameters()}
        for each in module.parameters():
            each.grad = None
        found = []
        for (args, kwargs), part in zip(parts_of(name, inputs), target.chunk(PARTS), strict=True):
            loss = case.loss(module(*args, **kwargs), part)
            loss.backward()
            found.append(loss.item())
        losses.append(sum(found) / PARTS)
        for each, gradient in given.items():
            if each.grad is not None:
                each.grad = each.grad / PARTS + (0 if gradient is None else gradient)
        if (number + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    merged = [torch.cat(each) for each in zip(*forward, strict=True)]
    return {"forward": merged, "losses": losses, "state": dict(module.state_dict())}


def parts_of(name: str, inputs: dict[str, Tensor]) -> list[tuple[Any, Any]]:
    """Return the arguments of each microbatch."""
    cut = {key: value.chunk(PARTS) for key, value in inputs.items()}
    return [
        CASES[name].split({key: values[number] for key, values in cut.items()})
        for number in range(PARTS)
    ]


def run_cases(
    folder: Path, cases: list[tuple[str, str, int]], steps: int, every: int = 1
) -> list[dict[str, Any]]:
    """Run cases one after the other, each by its name, schedule and number of stages."""
    return [_run(folder / f"{name}_{count}", name, schedule, steps, every)
            for name, schedule, count in cases]  # fmt: skip


def _run(path: Path, name: str, schedule: str, steps: int, every: int) -> dict[str, Any]:
    case = CASES[name]
    case.prepare()
    stages = pipeline.load_stages(path, schedule)
    last = next((stage for stage in stages if stage.number + 1 == stage.count), None)

    def loss_fn(given: Any, target: Tensor) -> Tensor:
        assert last is not None
        return case.loss(last.results(given), target)

    built = pipeline.build_schedule(schedule, stages, PARTS, loss_fn=loss_fn, timeout=100)
    has_first = any(stage.number == 0 for stage in stages)
    modules = [stage.module for stage in stages]
    before = [{k: v.clone() for k, v in each.state_dict().items()} for each in modules]

    def given(inputs: dict[str, Tensor], target: Tensor, losses: list[Tensor]) -> Any:
        args, kwargs = case.split(inputs) if has_first else ((), {})
        return args, {**kwargs, **({"target": target, "losses": losses} if last else {})}

    inputs, target = case.batches(1)[0]
    args, kwargs = given(inputs, target, [])
    with torch.no_grad():
        made = built.eval(*args, **kwargs)
    forward = None if last is None else tensors_in(last.results(made))
    for each, state in zip(modules, before, strict=True):
        each.load_state_dict(state)
    parameters = [each for module in modules for each in module.parameters()]
    optimizer = optimizer_of(parameters or [torch.nn.Parameter(torch.zeros(1))])
    losses = []
    for number, (inputs, target) in enumerate(case.batches(steps)):
        parts: list[Tensor] = []
        args, kwargs = given(inputs, target, parts)
        built.step(*args, **kwargs)
        losses.append(sum(part.item() for part in parts) / PARTS)
        if (number + 1) % every == 0:
            optimizer.step()
            optimizer.zero_grad()
    state = {key: value for module in modules for key, value in module.state_dict().items()}
    return {
        "forward": forward,
        "losses": losses if last else None,
        "state": state,
        "shared": [key for stage in stages for key in stage.shared],
    }
