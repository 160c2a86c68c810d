"""Let all ranks agree that they run the same stages, or fail with the same text."""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import time
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import distributed

from fxpress._distributed.errors import PipelineError, described
from fxpress._distributed.pipeline.parallel import all_keys, check_keys
from fxpress._torch.distributed import store_of

_MARGIN = 2.0  # seconds that the others wait longer than the rank that judges
_rounds: dict[Any, int] = {}  # by group
# Groups of whose round this rank does not know the verdict -> the refusal that it answered with.
_refused: dict[Any, str] = {}
_WITHDRAWN = "withdrawn"  # in place of a refusal: the rank tries again in the same round
_TAKEN = "taken: "  # in front of a refusal that rank 0 has read: it cannot be withdrawn


class Explain(Protocol):
    """What finds the error that all ranks raise; see `Watch`."""

    patience: float

    def settled(self, text: str, *, is_late: bool) -> str: ...


@dataclasses.dataclass
class Answer:
    """What a rank says of itself."""

    stages: list[int]  # the numbers of the stages that it runs
    digest: str = ""  # of the files
    graph: str = ""  # the hash of the program that was cut
    plan: str = ""  # the digest of the plan that it was cut by
    settings: str = ""  # of the schedule, for an error
    trains: bool = False  # whether the schedule has a loss function
    scale_grads: bool = True  # whether the schedule divides gradients by the number of microbatches
    # Names of the tensor-parallel plan -> whether a stage here has a module for each.
    plan_keys: dict[str, bool] = dataclasses.field(default_factory=dict)
    # Names of weights that other stages have too -> how a mesh cuts them here.
    cuts: dict[str, str] = dataclasses.field(default_factory=dict)
    torch: str = torch.__version__
    error: str = ""  # what went wrong on this rank; "" if nothing


def agree(
    answer: Answer,
    group: Any,
    timeout: float,
    names: list[str],
    cause: BaseException | None = None,
    explain: Explain | None = None,
) -> None:
    """Return if all ranks have the same. Every rank of the group has to call it.

    Rank 0 reads all answers and judges, so that each of the others reads and writes few keys. All
    ranks raise the same PipelineError, also where one does not answer within `timeout` seconds. Its
    cause is `cause` on a rank that answers with an error. `explain` finds the error of ranks that
    have failed before they got here.
    """
    rank, store = distributed.get_rank(group), store_of(group)
    try:
        key = f"agree/{rounds(group)}"
        _next_round(group)
        store.set(f"{key}/{rank}", json.dumps(dataclasses.asdict(answer)))
        if rank == 0:
            error = _verdict(store, key, names, timeout, explain)
            store.set(f"{key}/verdict", error)
            _wait_until_read(store, key, len(names), timeout)
        else:
            error = _hear(store, key, names, timeout, explain)
    except RuntimeError as gone:
        raise PipelineError(out_of_reach(names)) from gone
    if error:
        raise PipelineError(error) from cause


@contextlib.contextmanager
def told(group: Any, stages: list[int]) -> Iterator[None]:
    """Return a block whose error is this rank's answer, so that nobody waits for another one.

    The error itself is raised at once here, also if no other rank ever agrees on anything. A rank
    that tries again before the others have come takes part in the same round.
    """
    try:
        yield
    except Exception as error:
        with contextlib.suppress(RuntimeError):  # the store has gone
            _refuse(Answer(stages=stages, error=described(error)), group)
        raise


def _refuse(answer: Answer, group: Any) -> None:
    rank, store = distributed.get_rank(group), store_of(group)
    key = f"agree/{rounds(group)}"
    text = json.dumps(dataclasses.asdict(answer))
    store.set(f"{key}/{rank}", text)
    if rank:
        _refused[group] = text
        return
    store.set(f"{key}/verdict", f"{name_of(0, answer.stages)}: {answer.error}")
    _next_round(group)


def rounds(group: Any) -> int:
    """Return how many times the ranks of a group have tried to agree: the same on each.

    A refusal of this rank that nobody has read is withdrawn; after one that was read, it is the
    next round.
    """
    refusal = _refused.pop(group, None)
    if refusal is not None:
        key, store = f"agree/{_rounds.get(group, 0)}", store_of(group)
        own = f"{key}/{distributed.get_rank(group)}"
        is_over = store.check([f"{key}/verdict"])
        if is_over or store.compare_set(own, refusal, _WITHDRAWN).decode() != _WITHDRAWN:
            _next_round(group)
    return _rounds.get(group, 0)


def _next_round(group: Any) -> None:
    _rounds[group] = _rounds.get(group, 0) + 1


def out_of_reach(names: list[str]) -> str:
    """Return the error for a store that does not answer. Mostly it is rank 0 that keeps it."""
    return f"the store cannot be reached: {names[0]} has died, or the network is cut"


def _wait_until_read(store: Any, key: str, size: int, timeout: float) -> None:
    """Wait for ranks that answered: rank 0 may keep the store, and end after an error."""
    end = time.monotonic() + min(timeout, _MARGIN)
    while store.add(f"{key}/read", 0) < size - 1 and time.monotonic() < end:
        time.sleep(0.01)


def _hear(store: Any, key: str, names: list[str], timeout: float, explain: Explain | None) -> str:
    """Return the verdict of rank 0, which begins to wait for others when it has come itself."""
    late = f"{names[0]} did not answer within {timeout:g} s"
    if text_of(store, f"{key}/0", explain.patience if explain else timeout) is None:
        return late if explain is None else explain.settled(late, is_late=True)
    verdict = text_of(store, f"{key}/verdict", timeout + _MARGIN)
    if verdict is not None:
        store.add(f"{key}/read", 1)
        return verdict
    return late if explain is None else explain.settled(late, is_late=False)


def _verdict(
    store: Any, key: str, names: list[str], timeout: float, explain: Explain | None
) -> str:
    """Return what is wrong with the answers of all ranks; "" for nothing."""
    end = time.monotonic() + (explain.patience if explain else timeout)
    answers: list[Answer | None] = []
    for rank in range(len(names)):
        answers.append(_answer_in(store, f"{key}/{rank}", end))
    error = _fault(answers, names, timeout)
    if explain is None or not error:
        return error
    return explain.settled(error, is_late=None in answers)


def _answer_in(store: Any, key: str, end: float) -> Answer | None:
    """Return the answer of a rank; if it is a refusal, the rank does not withdraw it any more."""
    while (text := text_of(store, key, max(end - time.monotonic(), 0.01))) is not None:
        if text != _WITHDRAWN:
            answer, taken = Answer(**json.loads(text)), _TAKEN + text
            if not answer.error or store.compare_set(key, text, taken).decode() == taken:
                return answer
        elif time.monotonic() > end:
            return None
        else:
            time.sleep(0.01)
    return None


def text_of(store: Any, key: str, seconds: float) -> str | None:
    """Return the value of a key, None after some seconds; RuntimeError for an unreachable store."""
    try:
        store.wait([key], datetime.timedelta(seconds=seconds))
    except distributed.DistStoreError:
        return None
    except RuntimeError:
        store.check([key])  # it answers, so that a FileStore's time is over
        return None
    return str(store.get(key).decode())


def name_of(rank: int, stages: list[int]) -> str:
    """Return how errors name a rank."""
    numbers = ", ".join(str(stage) for stage in stages)
    return f"rank {rank} (stage{'s' if len(stages) > 1 else ''} {numbers or 'unknown'})"


def _fault(answers: list[Answer | None], names: list[str], timeout: float) -> str:
    for rank, answer in enumerate(answers):  # what failed comes before who is late for it
        if answer is not None and answer.error:
            return f"{name_of(rank, answer.stages)}: {answer.error}"
    late = [names[rank] for rank, answer in enumerate(answers) if answer is None]
    if late:
        return f"{', '.join(late)} did not answer within {timeout:g} s"
    given = [answer for answer in answers if answer is not None]
    first = given[0]
    for rank, answer in enumerate(given):
        for what, one, other in (
            ("runs torch", answer.torch, first.torch),
            ("has a program with the hash", answer.graph, first.graph),
            ("has a plan with the digest", answer.plan, first.plan),
            ("has files with the digest", answer.digest, first.digest),
            ("has the schedule", answer.settings, first.settings),
            ("has", _loss(answer), _loss(first)),
            ("has scale_grads", answer.scale_grads, first.scale_grads),
        ):
            if one != other:
                name = name_of(rank, answer.stages)
                return f"{name} {what} {one}, and rank 0 {other}"
    cuts: dict[str, tuple[str, str]] = {}
    for rank, answer in enumerate(given):
        for weight, cut in answer.cuts.items():
            name, other = cuts.setdefault(weight, (name_of(rank, answer.stages), cut))
            if cut != other:
                own = name_of(rank, answer.stages)
                return f"the plan cuts {weight} differently: {own} {cut}, and {name} {other}"
    try:
        check_keys(all_keys(answer.plan_keys for answer in given))
    except PipelineError as error:
        return str(error)
    return ""


def _loss(answer: Answer) -> str:
    return "a loss_fn" if answer.trains else "no loss_fn"
