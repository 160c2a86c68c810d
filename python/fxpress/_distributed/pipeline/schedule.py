"""Build one of torch's pipeline schedules for stages."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.distributed.tensor import DTensor

from fxpress._distributed.errors import PipelineError, described
from fxpress._distributed.pipeline import arguments as pipeline_arguments
from fxpress._distributed.pipeline.agreement import Answer, agree, broadcast_failure, name_of
from fxpress._distributed.pipeline.load import LoadedStage
from fxpress._distributed.pipeline.parallel import all_keys, placed
from fxpress._distributed.pipeline.placement import placement
from fxpress._distributed.pipeline.watch import Watch
from fxpress._torch import distributed as torch_distributed


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
    """Return one of torch's schedules for this rank's stages. Every rank has to call this function.

    The ranks first check that they use the same program, cut, files, torch version and schedule.
    Later, if a rank fails, dies or hangs, all other ranks raise an error that names this rank.
    After a training step, the ranks sum the gradients of each weight that several stages have, and
    add the sum to the gradient from before the step.

    Args:
        schedule: the name: "GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS",
            "InterleavedZeroBubble", "ZBVZeroBubble" or "DualPipeV".
        stages: the stages of this rank, see `placement`.
        n_microbatches: the number of parts that a batch is cut into; it divides the batch size. All
            batches of `step` need equal sizes, and so do all batches of `eval`.
        loss_fn: a function of the last stage's outputs and the target; None: nothing is trained.
            All ranks pass a function, though only the rank of the last stage calls it. `eval`
            without a target does not call it.
        group: the process group; None: all ranks.
        timeout: seconds that a rank waits for another.
        options: passed on to torch's schedule.

    Returns:
        The schedule; its `step` raises `PipelineError`.

    Raises:
        PipelineError: the ranks do not agree, torch refuses the arguments on a rank, a rank has
            died, or another rank has raised an error listed below. All ranks raise the same text.
        TypeError: the loss function is not callable, or an element of `stages` is not a stage.
        ValueError: torch has no such schedule, this rank is not in the group, there are no stages
            or no microbatches, or the timeout is not a number above 0.

    Stands in for the classes of schedules in `torch.distributed.pipelining`.

    Example:
        >>> from torch import distributed
        >>> from fxpress import pipeline
        >>> manifest = pipeline.save_stages(program, "alone", 1)
        >>> distributed.init_process_group(
        ...     "gloo", store=distributed.HashStore(), rank=0, world_size=1
        ... )
        >>> stages = pipeline.load_stages("alone")
        >>> schedule = pipeline.build_schedule("1F1B", stages, n_microbatches=1)
        >>> result = schedule.eval(x)
        >>> distributed.destroy_process_group()
    """
    pipeline_arguments.check_group(group)
    with broadcast_failure(group, []):
        own = _own(stages)
    with broadcast_failure(group, [each.number for each in own]):
        pipeline_arguments.check_timeout(timeout)
        pipeline_arguments.check_loss(loss_fn)
        pipeline_arguments.check_parts(n_microbatches)
        kind = torch_distributed.schedule_class(schedule)
    placed, error = _placed(schedule, own, group)
    names = [name_of(rank, numbers) for rank, numbers in enumerate(placed)]
    with Watch(group, names, timeout).kept() as watch:
        settings = {
            "settings": f"{schedule.lower()} of {n_microbatches} microbatches",
            "trains": loss_fn is not None,
            "scale_grads": bool(options.get("scale_grads", True)),
        }
        answer = _answer(own, settings, error)
        agree(answer, group, timeout, names)
        ranks = {number: rank for rank, numbers in enumerate(placed) for number in numbers}
        with watch.explained():
            inner = torch_distributed.new_group(
                distributed.get_process_group_ranks(group), watch.patience
            )
            shared = SharedGradients([] if loss_fn is None else own, ranks, inner)
        built: Any = None
        refusal = None
        try:
            made = [_torch_stage(each, watch, inner) for each in own]
            arguments = {"n_microbatches": n_microbatches, "loss_fn": loss_fn, **options}
            built = kind(
                made[0] if issubclass(kind, torch_distributed.SingleSchedule) else made, **arguments
            )
        except Exception as refused:  # torch refuses an option, perhaps on this rank only
            answer.error, refusal = described(refused), refused
        agree(answer, group, timeout, names, cause=refusal, explain=watch)
    checker = pipeline_arguments.MicrobatchChecker(n_microbatches)
    torch_distributed.check_microbatches(built, checker.check)
    torch_distributed.report_loss(built, watch.doing)
    built.step = functools.partial(_step, built, built.step, watch, own, shared, checker)
    weakref.finalize(built, watch.close)
    return built


def _step(
    built: Any,
    step: Callable[..., Any],
    watch: Watch,
    stages: list[LoadedStage],
    shared: SharedGradients,
    checker: pipeline_arguments.MicrobatchChecker,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Run a step of torch's schedule; after a failure, close the connections to other ranks."""
    has_target = any(kwargs.get(name) is not None for name in ("target", "target_mbs"))
    try:
        with watch.step():
            checker.begin(torch_distributed.trains(built), kwargs.get("target"))
            if not torch_distributed.trains(built):
                with (
                    contextlib.nullcontext()
                    if has_target
                    else torch_distributed.without_loss(built)
                ):
                    return step(*args, **kwargs)
            if not has_target and any(each.number + 1 == each.count for each in stages):
                raise PipelineError("a training step needs the target on this rank")
            with added(each for stage in stages for each in stage.module.parameters()):
                made = step(*args, **kwargs)
                shared.reduce()
            return made
    except PipelineError as error:
        shared.disconnect()
        torch_distributed.disconnect(built, error)
        raise


def _own(stages: LoadedStage | Sequence[LoadedStage]) -> list[LoadedStage]:
    """Return the stages of this rank as a list."""
    own = [stages] if isinstance(stages, LoadedStage) else list(stages)
    for each in own:
        if not isinstance(each, LoadedStage):
            raise TypeError(f"expected a stage from load_stage, got a {type(each).__name__}")
    if not own:
        raise ValueError("expected at least one stage for this rank: load_stages returns them")
    return own


def _placed(schedule: str, stages: list[LoadedStage], group: Any) -> tuple[list[list[int]], str]:
    """Return each rank's stage numbers, and an error if `stages` are wrong, else ""."""
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    try:
        placed = placement(schedule, size, stages[0].count)
    except PipelineError as error:
        return [[]] * size, str(error)
    if any(each.source.digest != stages[0].source.digest for each in stages):
        return placed, "the stages of this rank were loaded from different files"
    own = [each.number for each in stages]
    if own != placed[rank]:
        return placed, f"{schedule} runs the stages {placed[rank]} on this rank, which loaded {own}"
    return placed, ""


def _answer(stages: list[LoadedStage], settings: dict[str, Any], error: str) -> Answer:
    source = stages[0].source
    return Answer(
        stages=[each.number for each in stages],
        digest=source.digest,
        graph=source.manifest.graph_hash,
        plan=source.manifest.plan,
        cuts=_cuts(stages),
        plan_keys=all_keys(stage.plan_keys for stage in stages),
        error=error,
        **settings,
    )


def _cuts(stages: list[LoadedStage]) -> dict[str, str]:
    """Return, for the name of each weight in several stages, how a mesh cuts the weight."""
    found: dict[str, str] = {}
    for stage in stages:
        if stage.plan_keys:
            own = dict(stage.module.named_parameters(remove_duplicate=False))
            found.update((name, placed(own[name])) for name in stage.shared if name in own)
    return found


def _torch_stage(stage: LoadedStage, watch: Watch, group: Any) -> Any:
    tensors = [*stage.module.parameters(), *stage.module.buffers()]
    module: Any = stage.module
    return torch_distributed.Stage(
        module,
        stage.number,
        stage.count,
        tensors[0].device if tensors else torch.device("cpu"),
        group=group,
        doing=watch.doing,
        fill=module.fill,
    )


@contextlib.contextmanager
def added(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Run a block; then add the gradients from before the block to the new ones."""
    # At the end of a step, torch divides all gradients by the number of microbatches. Gradients of
    # earlier steps have been divided already, so the block runs without them.
    before = [(each, each.grad) for each in parameters if each.grad is not None]
    for parameter, _ in before:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in before:
            if parameter.grad is not None:
                gradient.add_(parameter.grad)
            parameter.grad = gradient


class _Shared(NamedTuple):
    copies: list[torch.nn.Parameter]  # the copies on this rank
    places: tuple[int, ...]  # the ranks that have a copy, numbered as in the default group


class SharedGradients:
    """Sums the gradients of parameters of which several ranks have copies."""

    def __init__(self, stages: list[LoadedStage], ranks: dict[int, int], group: Any) -> None:
        self._shared: list[_Shared] = []
        # Sums use the group of all ranks. If only some ranks created a group, torch would name
        # later groups differently on each rank.
        self._group, self._own = group, distributed.get_rank()
        here = {
            stage.number: dict(stage.module.named_parameters(remove_duplicate=False))
            for stage in stages
        }
        of_all = distributed.get_process_group_ranks(group)
        shared = stages[0].source.manifest.shared if stages else ()
        for names, numbers in shared:
            places = tuple(sorted({of_all[ranks[number]] for number in numbers}))
            copies = [
                parameters[name]
                for number in numbers
                for name, parameters in ((name, here.get(number, {})) for name in names)
                if name in parameters and parameters[name].requires_grad
            ]
            if copies:
                self._shared.append(_Shared(list(dict.fromkeys(copies)), places))

    def reduce(self) -> None:
        """Set the gradient of each copy to the sum of all copies' gradients."""
        for copies, places in self._shared:
            total = torch.zeros_like(copies[0], memory_format=torch.contiguous_format)
            for each in copies:
                if each.grad is not None:
                    total += each.grad
            self._sum(total.to_local() if isinstance(total, DTensor) else total, places)
            for each in copies:
                each.grad = total.clone() if each is not copies[0] else total

    def disconnect(self) -> None:
        """Release the process group, which is closed when nothing refers to it."""
        self._group = None

    def _sum(self, total: torch.Tensor, places: tuple[int, ...]) -> None:
        """Replace `total` by its sum over the ranks `places`; the first rank computes the sum."""
        first, *others = places
        if self._own != first:
            distributed.send(total, first, group=self._group)
            distributed.recv(total, first, group=self._group)
            return
        part = torch.empty_like(total)
        for rank in others:
            distributed.recv(part, rank, group=self._group)
            total += part
        for rank in others:
            distributed.send(total, rank, group=self._group)
