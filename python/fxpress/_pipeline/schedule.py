"""Build a schedule of torch for stages."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed

from fxpress._pipeline.agreement import Answer, agree, name_of
from fxpress._pipeline.load import LoadedStage
from fxpress._pipeline.shared import SharedGradients
from fxpress._pipeline.watch import Watch
from fxpress._torch.distributed import SingleSchedule, Stage, new_group, schedule_class


def build_schedule(
    schedule: str,
    stages: LoadedStage | Sequence[LoadedStage],
    n_microbatches: int,
    *,
    loss_fn: Callable[..., torch.Tensor] | None = None,
    group: Any = None,
    timeout: float = 300.0,
    **options: Any,
) -> Any:
    """Return one of torch's schedules for the stages of this rank. Every rank has to call it.

    The ranks agree on the program, its cut, the files, torch and the schedule first. From then on,
    a rank that fails, dies or hangs in a step makes the step fail on all others, with an error that
    names it. After a step that trains, gradients of weights that several stages have are summed.

    Args:
        schedule: the name: "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS",
            "InterleavedZeroBubble", "ZBVZeroBubble" or "DualPipeV".
        stages: those of this rank, see `placement`.
        n_microbatches: the number of parts that a batch is cut into.
        loss_fn: takes what the last stage gives and the target; None: nothing is trained.
        group: the process group; None: all ranks.
        timeout: seconds that a rank waits for another.
        options: passed on to torch's schedule.

    Returns:
        The schedule; its `step` raises `PipelineError`.

    Raises:
        PipelineError: the ranks do not agree; the text is the same on all.
        ValueError: torch has no such schedule.

    Stands in for the classes of schedules in `torch.distributed.pipelining`.
    """
    own = [stages] if isinstance(stages, LoadedStage) else list(stages)
    kind = schedule_class(schedule)
    settings = f"{schedule.lower()} of {n_microbatches} microbatches"
    ranks = agree(_answer(own, settings), group, timeout)
    numbers: list[list[int]] = [[] for _ in range(distributed.get_world_size(group))]
    for stage, owner in enumerate(ranks):
        numbers[owner].append(stage)
    names = [name_of(rank, each) for rank, each in enumerate(numbers)]
    watch = Watch(group, names, timeout)
    inner = new_group(distributed.get_process_group_ranks(group), watch.patience)
    made = [_torch_stage(each, watch, inner) for each in own]
    arguments = {"n_microbatches": n_microbatches, "loss_fn": loss_fn, **options}
    built = kind(made[0] if issubclass(kind, SingleSchedule) else made, **arguments)
    shared = None if loss_fn is None else SharedGradients(own, ranks, inner, watch.patience)
    built.step = functools.partial(_step, built.step, watch, shared)
    return built


def _step(
    step: Callable[..., Any], watch: Watch, shared: SharedGradients | None, *args: Any, **kw: Any
) -> Any:
    with watch.step():
        made = step(*args, **kw)
        if shared is not None:
            shared.reduce()
    return made


def _answer(stages: list[LoadedStage], settings: str) -> Answer:
    source = stages[0].source
    error = ""
    for each in stages[1:]:
        if each.source.digest != source.digest:
            error = f"{each} and {stages[0]} are of different files"
    return Answer(
        stages=[each.number for each in stages],
        count=stages[0].count,
        digest=source.digest,
        graph=source.manifest.graph_hash,
        plan=source.manifest.plan,
        settings=settings,
        error=error,
    )


def _torch_stage(stage: LoadedStage, watch: Watch, group: Any) -> Any:
    tensors = [*stage.module.parameters(), *stage.module.buffers()]
    module: Any = stage.module
    return Stage(
        *(module, stage.number, stage.count, tensors[0].device if tensors else torch.device("cpu")),
        group=group,
        doing=watch.doing,
        fill=module.fill,
    )
