"""Rounds in which ranks agree, in any order: refusals, late ranks, restarts, other versions."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import gc
import importlib.util
import json
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from torch import distributed

from fxpress._distributed.errors import PipelineError
from fxpress._distributed.pipeline import agreement
from fxpress._distributed.pipeline.agreement import Answer
from fxpress._torch.distributed import store_of

KEY = "agree/0/1"
REFUSAL = json.dumps(dataclasses.asdict(Answer([1], error="ValueError: no")))
SOUND = json.dumps(dataclasses.asdict(Answer([1])))
OWN = threading.local()  # its `rank` is that of a thread; without one it is 1
NAMES = ["rank 0 (stage 0)", "rank 1 (stage 1)"]


@pytest.fixture(name="store", params=["hash", "file"])
def _store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store of all groups, in which this thread is rank 1."""
    is_hash = request.param == "hash"
    store = distributed.HashStore() if is_hash else distributed.FileStore(str(tmp_path / "s"), 2)
    monkeypatch.setattr(agreement, "store_of", lambda group: store)
    monkeypatch.setattr(distributed, "get_rank", lambda group=None: getattr(OWN, "rank", 1))
    return store


@pytest.fixture(name="refused")
def _refused(store: Any) -> Any:
    """The store, in which rank 1 has refused in round 0."""
    with pytest.raises(ValueError, match="no"), agreement.broadcast_failure(None, [1]):
        raise ValueError("no")
    assert json.loads(store.get(KEY)) == json.loads(REFUSAL)
    return store


def read(store: Any, seconds: float = 10) -> Answer | None:
    return agreement._answer_in(store, KEY, time.monotonic() + seconds)


def at_once(*functions: Callable[[], Any]) -> list[str]:
    """Return the errors, "" for none, of functions that ranks call at the same time."""

    def call(rank: int) -> str:
        OWN.rank = rank
        try:
            functions[rank]()
        except PipelineError as error:
            return str(error)
        return ""

    with concurrent.futures.ThreadPoolExecutor(len(functions)) as pool:
        return list(pool.map(call, range(len(functions))))


def agree(answer: Any, timeout: float = 10, module: Any = agreement) -> Callable[[], None]:
    return lambda: module.agree(answer, None, timeout, NAMES)


@pytest.fixture(name="new_process")
def _new_process(store: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module as a new process has it."""
    spec = importlib.util.spec_from_file_location("agreement_of_a_new_process", agreement.__file__)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)
    spec.loader.exec_module(module)
    module.store_of = lambda group: store
    return module


def test_a_refusal_that_was_read_is_not_withdrawn(refused: Any) -> None:
    answer = read(refused)
    assert answer is not None
    assert answer.error == "ValueError: no"
    assert agreement.join_round(None) == 1  # the rank tries again in the next round
    assert agreement.join_round(None) == 1


def test_a_refusal_that_nobody_has_read_is_withdrawn(refused: Any) -> None:
    assert agreement.join_round(None) == 0
    assert agreement.join_round(None) == 0
    late = threading.Timer(0.2, refused.set, (KEY, SOUND))
    late.start()
    answer = read(refused)  # it waits for the new answer
    late.join()
    assert answer == Answer([1])


def test_the_rank_never_answers_again(refused: Any) -> None:
    assert agreement.join_round(None) == 0
    start = time.monotonic()
    assert read(refused, 0.2) is None
    assert time.monotonic() - start < 5


def test_a_round_that_is_over(refused: Any) -> None:
    agreement._end_round(refused, 0, "rank 0 failed")
    assert agreement.join_round(None) == 1


@pytest.mark.parametrize("_", range(20))
def test_both_at_once(_: int, refused: Any) -> None:
    """The rank joins the next round if, and only if, its refusal was read."""
    found: list[Answer | None] = []
    reader = threading.Thread(target=lambda: found.append(read(refused)))
    reader.start()
    number = agreement.join_round(None)
    if number == 0:
        refused.set(KEY, SOUND)
    reader.join()
    assert [answer is not None and answer.error for answer in found] == [
        "ValueError: no" if number else ""
    ]


def test_a_late_rank_gets_the_verdict_and_then_takes_part_again(store: Any) -> None:
    late = "rank 1 (stage 1) did not answer within 0.2 s"
    assert at_once(agree(Answer([0]), 0.2)) == [late]
    with pytest.raises(PipelineError) as caught:
        agreement.agree(Answer([1]), None, 10, NAMES)
    assert str(caught.value) == late
    assert at_once(agree(Answer([0])), agree(Answer([1]))) == ["", ""]


def test_a_late_rank_meets_rank_0_that_tries_again(store: Any) -> None:
    assert at_once(agree(Answer([0]), 0.2)) != [""]
    assert at_once(agree(Answer([0])), agree(Answer([1]))) == ["", ""]


def test_a_late_rank_gets_a_refusal_of_rank_0_that_tries_again(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(OWN, "rank", 0, raising=False)
        with pytest.raises(ValueError, match="no"), agreement.broadcast_failure(None, [0]):
            raise ValueError("no")
    store.set("agree/1/0", SOUND)  # it has begun the next round
    with pytest.raises(PipelineError, match=r"rank 0 \(stage 0\): ValueError: no"):
        agreement.agree(Answer([1]), None, 10, NAMES)
    assert agreement.join_round(None) == 1


@pytest.mark.parametrize("new", [0, 1])
@pytest.mark.parametrize("before", [1, 3])
def test_a_new_process_takes_part_in_the_round_of_the_others(
    new: int, before: int, new_process: Any
) -> None:
    for _ in range(before):
        assert at_once(agree(Answer([0])), agree(Answer([1]))) == ["", ""]
    modules = [new_process if rank == new else agreement for rank in range(2)]
    for _ in range(2):
        calls = [agree(modules[rank].Answer([rank]), module=modules[rank]) for rank in range(2)]
        assert at_once(*calls) == ["", ""]


def test_a_new_process_does_not_take_the_verdict_of_an_old_round(new_process: Any) -> None:
    assert at_once(agree(Answer([0])), agree(Answer([1]))) == ["", ""]
    other, sound = Answer([0], digest="other"), new_process.Answer([1])
    first, second = at_once(agree(other), agree(sound, module=new_process))
    assert first == second == "rank 1 (stage 1) has files with the digest , and rank 0 other"


def test_rank_0_died_while_another_waited(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    store.set("agree/0/0", SOUND)  # the old process of rank 0 has begun the round
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(agree(Answer([1])))
        while not store.check([KEY]) or store.get(KEY) == b"joined":
            time.sleep(0.01)
        monkeypatch.setattr(OWN, "rank", 0, raising=False)
        agreement.join_round(None)
        with pytest.raises(PipelineError, match=r"rank 0 .* has restarted"):
            waiting.result(10)
    assert at_once(agree(Answer([0])), agree(Answer([1]))) == ["", ""]


Newer = dataclasses.make_dataclass("Newer", [("color", str, "red")], bases=(Answer,))


@pytest.mark.parametrize("bad", [0, 1])
def test_an_answer_with_another_field(bad: int, store: Any) -> None:
    answers = [(Newer if rank == bad else Answer)([rank]) for rank in range(2)]
    start = time.monotonic()
    first, second = at_once(*map(agree, answers))
    assert time.monotonic() - start < 5
    assert first == second
    assert "runs fxpress" in first
    assert "other fields: color" in first


WRONG = {"stages": [0, None], "digest": 1, "error": [], "trains": 0, "plan_keys": {"a": "no"}}
WRONG |= {"cuts": [1], "fxpress": 3, "scale_grads": None, "torch": {}, "settings": 2.5}


@pytest.mark.parametrize("bad", [0, 1])
@pytest.mark.parametrize("field", WRONG)
def test_an_answer_with_a_field_of_another_type(bad: int, field: str, store: Any) -> None:
    answers = [Answer([rank]) for rank in range(2)]
    setattr(answers[bad], field, WRONG[field])
    first, second = at_once(*map(agree, answers))
    assert first == second
    assert "runs fxpress" in first
    assert f"other fields: {field})" in first


def test_another_version(store: Any) -> None:
    first, second = at_once(agree(Answer([0], fxpress="1")), agree(Answer([1], fxpress="2")))
    assert first == second == "rank 1 (stage 1) runs fxpress 2, and rank 0 1"


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[1, 2]", "null", "{}", '{"stages": 5}', '{"cuts": 5, "stages": []}']
)
def test_an_answer_that_is_no_answer(text: str, store: Any) -> None:
    """The rank that judges does not fail alone."""
    store.set(KEY, text or " ")

    def hear() -> None:
        error = agreement._await_verdict(store, "agree/0", NAMES, 10, None)
        if error:
            raise PipelineError(error)

    start = time.monotonic()
    first, second = at_once(agree(Answer([0])), hear)
    assert time.monotonic() - start < 5
    assert first == second != ""


@pytest.fixture
def alone() -> Iterator[None]:
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("alone")
def test_groups_of_the_same_ranks_share_no_keys() -> None:
    groups = [None, distributed.new_group([0]), distributed.new_group([0])]
    for number, group in enumerate(groups):
        store_of(group).set("key", str(number))
    assert [store_of(group).get("key") for group in groups] == [b"0", b"1", b"2"]
    assert store_of(distributed.group.WORLD).get("key") == b"0"  # None stands for it


@pytest.mark.usefixtures("alone")
def test_groups_are_released() -> None:
    group = distributed.new_group([0])
    kept = weakref.ref(group)
    with pytest.raises(ValueError, match="no"), agreement.broadcast_failure(group, [0]):
        raise ValueError("no")
    agreement.agree(Answer([0]), group, 10, NAMES[:1])
    distributed.destroy_process_group(group)
    del group
    gc.collect()
    assert kept() is None
