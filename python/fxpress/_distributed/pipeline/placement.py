"""Find which stages each rank runs."""

from __future__ import annotations

from fxpress._distributed.errors import PipelineError
from fxpress._torch.distributed import V_SCHEDULES, SingleSchedule, schedule_class


def placement(schedule: str, ranks: int, stages: int) -> list[list[int]]:
    """Return the numbers of the stages that a schedule runs on each rank.

    Args:
        schedule: the name of one of torch's schedules, such as "1F1B".
        ranks: the number of ranks.
        stages: the number of stages.

    Raises:
        PipelineError: the schedule cannot run this number of stages on this number of ranks, or
            one of the numbers is not positive.
        ValueError: torch has no such schedule.

    Stands in for `torch.distributed.pipelining._utils.generate_stage_to_rank_mapping`.

    Example:
        >>> from fxpress import pipeline
        >>> pipeline.placement("Interleaved1F1B", 2, 4)
        [[0, 2], [1, 3]]
        >>> pipeline.placement("ZBVZeroBubble", 2, 4)
        [[0, 3], [1, 2]]
    """
    kind = schedule_class(schedule)
    if any(type(number) is not int or number < 1 for number in (ranks, stages)):
        raise PipelineError(f"{schedule} cannot run {stages!r} stages on {ranks!r} ranks")
    each = 1 if issubclass(kind, SingleSchedule) else 2 if issubclass(kind, V_SCHEDULES) else None
    fits = stages == ranks * each if each else stages % ranks == 0
    if not fits:
        wanted = f"{each * ranks}" if each else f"a multiple of {ranks}"
        raise PipelineError(f"{schedule} on {ranks} ranks runs {wanted} stages, not {stages}")
    if issubclass(kind, V_SCHEDULES):
        return [[rank, stages - 1 - rank] for rank in range(ranks)]
    return [list(range(rank, stages, ranks)) for rank in range(ranks)]
