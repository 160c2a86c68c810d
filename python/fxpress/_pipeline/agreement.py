"""Let all ranks agree that they run the same stages, or fail with the same text."""

from __future__ import annotations

import dataclasses
import datetime
import itertools
import json
import time
from collections import Counter
from typing import Any

import torch
from torch import distributed

from fxpress._pipeline.errors import PipelineError
from fxpress._torch.distributed import store_of

_MARGIN = 2.0  # seconds that the others wait longer than the rank that judges
_rounds: dict[Any, itertools.count[int]] = {}


@dataclasses.dataclass
class Answer:
    """What a rank says of itself.

    Attributes:
        stages: the numbers of the stages that it runs.
        count: of all stages.
        digest: of the files.
        graph: the hash of the program that was cut.
        plan: the digest of the plan that it was cut by.
        settings: of the schedule, for an error.
        torch: its version.
        error: what went wrong on this rank; "" if nothing.
    """

    stages: list[int]
    count: int = 0
    digest: str = ""
    graph: str = ""
    plan: str = ""
    settings: str = ""
    torch: str = torch.__version__
    error: str = ""


def agree(answer: Answer, group: Any, timeout: float) -> list[int]:
    """Return the rank of each stage. Every rank of the group has to call it.

    Rank 0 reads all answers and judges, so that each of the others reads and writes two keys.

    Args:
        answer: of this rank.
        group: the process group; None: all.
        timeout: seconds.

    Raises:
        PipelineError: a rank does not answer in time, has failed, or has something else than
            rank 0. All ranks raise the same text.
    """
    rank, size = distributed.get_rank(group), distributed.get_world_size(group)
    store = store_of(group)
    key = f"agree/{next(_rounds.setdefault(group, itertools.count()))}"
    store.set(f"{key}/{rank}", json.dumps(dataclasses.asdict(answer)))
    if rank == 0:
        verdict = _verdict(store, key, size, timeout)
        store.set(f"{key}/verdict", json.dumps(verdict))
        _wait_until_read(store, key, size, timeout)
    else:
        try:
            store.wait([f"{key}/verdict"], datetime.timedelta(seconds=timeout + _MARGIN))
            verdict = json.loads(store.get(f"{key}/verdict"))
        except RuntimeError as error:
            raise PipelineError(f"rank 0 did not answer within {timeout:g} s: {error}") from error
        store.add(f"{key}/read", 1)
    if verdict["error"]:
        raise PipelineError(verdict["error"])
    ranks: list[int] = verdict["ranks"]
    return ranks


def _wait_until_read(store: Any, key: str, size: int, timeout: float) -> None:
    """Wait for ranks that answered: rank 0 may keep the store, and end after an error."""
    end = time.monotonic() + min(timeout, _MARGIN)
    while store.add(f"{key}/read", 0) < size - 1 and time.monotonic() < end:
        time.sleep(0.01)


def _verdict(store: Any, key: str, size: int, timeout: float) -> dict[str, Any]:
    end = time.monotonic() + timeout
    answers: list[Answer | None] = []
    for rank in range(size):
        left = max(end - time.monotonic(), 0.01)
        try:
            store.wait([f"{key}/{rank}"], datetime.timedelta(seconds=left))
            answers.append(Answer(**json.loads(store.get(f"{key}/{rank}"))))
        except RuntimeError:
            answers.append(None)
    error = _fault(answers, timeout)
    if error:
        return {"error": error}
    owner = {stage: i for i, each in enumerate(answers) if each for stage in each.stages}
    return {"error": "", "ranks": [owner[stage] for stage in sorted(owner)]}


def name_of(rank: int, stages: list[int]) -> str:
    """Return how errors name a rank."""
    numbers = ", ".join(str(stage) for stage in stages)
    return f"rank {rank} (stage{'s' if len(stages) > 1 else ''} {numbers or 'unknown'})"


def _fault(answers: list[Answer | None], timeout: float) -> str:
    """Return what is wrong with the answers of all ranks; "" for nothing."""
    for rank, answer in enumerate(answers):  # what failed comes before who is late for it
        if answer is not None and answer.error:
            return f"{name_of(rank, answer.stages)}: {answer.error}"
    late = [str(rank) for rank, answer in enumerate(answers) if answer is None]
    if late:
        return f"rank {', '.join(late)} did not answer within {timeout:g} s"
    given = [answer for answer in answers if answer is not None]
    first = given[0]
    for rank, answer in enumerate(given):
        for what, one, other in (
            ("runs torch", answer.torch, first.torch),
            ("has a program with the hash", answer.graph, first.graph),
            ("has a plan with the digest", answer.plan, first.plan),
            ("has files with the digest", answer.digest, first.digest),
            ("has the schedule", answer.settings, first.settings),
        ):
            if one != other:
                name = name_of(rank, answer.stages)
                return f"{name} {what} {one}, and rank 0 {other}"
    owned = Counter(stage for answer in given for stage in answer.stages)
    wrong = [stage for stage in range(first.count) if owned[stage] != 1]
    if wrong:
        return f"stage {wrong[0]} is on {owned[wrong[0]]} ranks: each has to be on one"
    return ""
