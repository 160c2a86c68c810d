"""Check that all ranks run the same stages. If not, all ranks raise the same error text.

In each numbered round, every rank writes an `Answer` into torch.distributed's store. Rank 0
compares the answers and writes the verdict: the text of the error that all ranks raise, or "".
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import time
import typing
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import distributed

from fxpress._distributed.errors import PipelineError, described
from fxpress._distributed.pipeline.parallel import all_keys, check_keys
from fxpress._distributed.stages.manifest import fxpress_version
from fxpress._torch.distributed import store_of

_MARGIN = 2.0  # extra seconds that the other ranks wait for rank 0
_ROUND = "round"  # the store's key for the number of rank 0's current or next round
# In a round, a rank's key in the store contains its answer or one of these strings:
_JOINED = "joined"  # the rank takes part, and will answer
_TAKEN = "taken"  # rank 0 has read the answer, so the rank cannot replace it


class Explain(Protocol):
    """The methods of `Watch` that find the error that all ranks raise."""

    patience: float

    def settled(self, text: str, *, is_late: bool) -> str: ...


@dataclasses.dataclass
class Answer:
    """The stages, versions and settings of a rank, or its error."""

    stages: list[int]  # the numbers of the stages that the rank runs
    digest: str = ""  # the digest of the stages' files
    graph: str = ""  # the hash of the program that was cut
    plan: str = ""  # the digest of the plan by which the program was cut
    settings: str = ""  # the settings of the schedule, as errors show them
    trains: bool = False  # whether the schedule has a loss function
    scale_grads: bool = True  # whether the schedule divides gradients by the number of microbatches
    # Name in the tensor-parallel plan -> whether a stage on this rank has a module of this name.
    plan_keys: dict[str, bool] = dataclasses.field(default_factory=dict)
    # Name of a weight in several stages -> how a mesh cuts the weight on this rank.
    cuts: dict[str, str] = dataclasses.field(default_factory=dict)
    fxpress: str | None = dataclasses.field(default_factory=fxpress_version)
    torch: str = torch.__version__
    error: str = ""  # the error of this rank; "" if there is none


def agree(
    answer: Answer,
    group: Any,
    timeout: float,
    names: list[str],
    cause: BaseException | None = None,
    explain: Explain | None = None,
) -> None:
    """Wait for the answers of all ranks; if answers differ, every rank raises one PipelineError.

    Every rank of the group has to call this function. `cause` is the cause of the PipelineError on
    this rank; `explain` finds the errors of ranks that failed before this call.
    """
    rank, store = distributed.get_rank(group), store_of(group)
    try:
        number = join_round(group)
        key = f"agree/{number}"
        store.set(f"{key}/{rank}", json.dumps(dataclasses.asdict(answer)))
        if rank == 0:
            try:
                error = _verdict(store, key, names, timeout, explain)
            except RuntimeError:
                raise
            except Exception as failed:  # the error becomes the verdict that other ranks await
                error, cause = f"{names[0]}: {described(failed)}", failed
            _end_round(store, number, error)
            _wait_until_read(store, key, len(names), timeout)
        else:
            error = _await_verdict(store, key, names, timeout, explain)
    except RuntimeError as gone:
        raise PipelineError(out_of_reach(names)) from gone
    if error:
        raise PipelineError(error) from cause


@contextlib.contextmanager
def broadcast_failure(group: Any, stages: list[int]) -> Iterator[None]:
    """Run a block; if it fails, send the error to the ranks that wait in `agree`, and raise it."""
    try:
        yield
    except Exception as error:
        answer = Answer(stages=stages, error=described(error))
        rank, store = distributed.get_rank(group), store_of(group)
        with contextlib.suppress(RuntimeError):  # the store is closed
            number = join_round(group, patience=0.01)
            store.set(f"agree/{number}/{rank}", json.dumps(dataclasses.asdict(answer)))
            if rank == 0:
                _end_round(store, number, f"{name_of(0, stages)}: {answer.error}")
        raise


def join_round(group: Any, patience: float = _MARGIN) -> int:
    """Return the number of this rank's round, which does not change until the rank has answered.

    Only the store has the number, so that a restarted process joins the others' round. A rank that
    missed the previous round joins it, unless rank 0 joins the current one in `patience` seconds.
    """
    rank, store = distributed.get_rank(group), store_of(group)
    current: int = store.add(_ROUND, 0)
    if rank == 0:
        if store.check([f"agree/{current}/0"]):  # a former process of rank 0 died in this round
            store.set(f"agree/{current}/0", _TAKEN)
            _end_round(store, current, f"{name_of(0, [])} has restarted")
            current += 1
        return current
    for number in range(max(current - 1, 0), current + 1):
        key = f"agree/{number}/{rank}"
        text = store.get(key).decode() if store.check([key]) else ""
        if number == current:
            is_over = text == _TAKEN
        elif text == "" and store.get(f"agree/{number}/0").decode() == _TAKEN:
            is_over = text_of(store, f"agree/{current}/0", patience) is not None
        else:
            is_over = text not in ("", _JOINED)
        if not is_over and store.compare_set(key, text, _JOINED).decode() == _JOINED:
            return number
    return current + 1


def _end_round(store: Any, number: int, verdict: str) -> None:
    """Begin the next round, then write the verdict: ranks that have read it join the next round."""
    store.add(_ROUND, 1)
    store.set(f"agree/{number}/verdict", verdict)


def _decoded(text: str) -> Answer:
    """Parse an answer. If its fields differ from `Answer`, report them in the fxpress version."""
    try:
        fields = dict(json.loads(text))
    except (TypeError, ValueError):
        fields = {}
    hints = typing.get_type_hints(Answer)
    fitting = {n: fields[n] for n in fields.keys() & hints.keys() if _has_type(fields[n], hints[n])}
    answer = Answer(**{"stages": [], **fitting})
    if others := (fields.keys() | hints.keys()) - fitting.keys():
        names = ", ".join(sorted(others))
        answer.fxpress = f"{answer.fxpress} (its answer has other fields: {names})"
    return answer


def _has_type(value: Any, hint: Any) -> bool:
    """Return whether a value of JSON has the type of a field of `Answer`."""
    args = typing.get_args(hint)
    if typing.get_origin(hint) is list:
        return type(value) is list and all(_has_type(each, args[0]) for each in value)
    if typing.get_origin(hint) is dict:
        return type(value) is dict and all(_has_type(each, args[1]) for each in value.values())
    return type(value) in (args or (hint,))


def out_of_reach(names: list[str]) -> str:
    """Return the error for a store that does not answer. Usually rank 0 hosts the store."""
    return f"the store cannot be reached: {names[0]} has died, or the network is cut"


def _wait_until_read(store: Any, key: str, size: int, timeout: float) -> None:
    """Wait until all ranks have read the verdict, because the store may end with rank 0."""
    end = time.monotonic() + min(timeout, _MARGIN)
    while store.add(f"{key}/read", 0) < size - 1 and time.monotonic() < end:
        time.sleep(0.01)


def _await_verdict(
    store: Any, key: str, names: list[str], timeout: float, explain: Explain | None
) -> str:
    """Return rank 0's verdict, or an error if rank 0 does not answer and decide in time."""
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
    """Wait for the answers of all ranks; return the text of the error in them, or ""."""
    end = time.monotonic() + (explain.patience if explain else timeout)
    answers: list[Answer | None] = []
    for rank in range(len(names)):
        answers.append(_answer_in(store, f"{key}/{rank}", end))
    error = _fault(answers, names, timeout)
    if explain is None or not error:
        return error
    return explain.settled(error, is_late=None in answers)


def _answer_in(store: Any, key: str, end: float) -> Answer | None:
    """Return a rank's answer and mark it as taken, so that it is final; None if it is late."""
    while (text := text_of(store, key, max(end - time.monotonic(), 0.01))) is not None:
        if text != _JOINED and store.compare_set(key, text, _TAKEN).decode() == _TAKEN:
            return _decoded(text)
        if time.monotonic() > end:
            return None
        time.sleep(0.01)
    return None


def text_of(store: Any, key: str, seconds: float) -> str | None:
    """Return a key's value; None after `seconds`; RuntimeError if the store is unreachable."""
    try:
        store.wait([key], datetime.timedelta(seconds=seconds))
    except distributed.DistStoreError:
        return None
    except RuntimeError:
        store.check([key])  # raises if the store is unreachable; otherwise, a FileStore timed out
        return None
    return str(store.get(key).decode())


def name_of(rank: int, stages: list[int]) -> str:
    """Return the name of a rank in errors."""
    numbers = ", ".join(str(stage) for stage in stages)
    return f"rank {rank} (stage{'s' if len(stages) > 1 else ''} {numbers or 'unknown'})"


def _fault(answers: list[Answer | None], names: list[str], timeout: float) -> str:
    for rank, answer in enumerate(answers):  # errors first: a failed rank may make others late
        if answer is not None and answer.error:
            return f"{name_of(rank, answer.stages)}: {answer.error}"
    late = [names[rank] for rank, answer in enumerate(answers) if answer is None]
    if late:
        return f"{', '.join(late)} did not answer within {timeout:g} s"
    given = [answer for answer in answers if answer is not None]
    first = given[0]
    for rank, answer in enumerate(given):
        for what, one, other in (
            ("runs fxpress", answer.fxpress, first.fxpress),
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
