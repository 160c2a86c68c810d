"""Refusals of ranks, and ranks that try again in the same round, in any order."""

from __future__ import annotations

import dataclasses
import json
import threading
import time
from typing import Any

import pytest
from torch import distributed

from fxpress._distributed.pipeline import agreement
from fxpress._distributed.pipeline.agreement import Answer

KEY = "agree/0/1"
REFUSAL = json.dumps(dataclasses.asdict(Answer([1], error="ValueError: no")))
SOUND = json.dumps(dataclasses.asdict(Answer([1])))


@pytest.fixture(name="store")
def _store(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The store of a group of which this process is rank 1, which has refused in round 0."""
    store = distributed.HashStore()
    store.set(KEY, REFUSAL)
    monkeypatch.setattr(agreement, "store_of", lambda group: store)
    monkeypatch.setattr(distributed, "get_rank", lambda group: 1)
    monkeypatch.setattr(agreement, "_refused", {"group": REFUSAL})
    monkeypatch.setattr(agreement, "_rounds", {})
    return store


def read(store: Any, seconds: float = 10) -> Answer | None:
    return agreement._answer_in(store, KEY, time.monotonic() + seconds)


def test_a_refusal_that_was_read_is_not_withdrawn(store: Any) -> None:
    answer = read(store)
    assert answer is not None
    assert answer.error == "ValueError: no"
    assert agreement.rounds("group") == 1  # the rank tries again in the next round
    assert agreement.rounds("group") == 1


def test_a_refusal_that_nobody_has_read_is_withdrawn(store: Any) -> None:
    assert agreement.rounds("group") == 0
    assert agreement.rounds("group") == 0
    late = threading.Timer(0.2, store.set, (KEY, SOUND))
    late.start()
    answer = read(store)  # it waits for the new answer
    late.join()
    assert answer == Answer([1])


def test_the_rank_never_answers_again(store: Any) -> None:
    assert agreement.rounds("group") == 0
    start = time.monotonic()
    assert read(store, 0.2) is None
    assert time.monotonic() - start < 5


def test_a_round_that_is_over(store: Any) -> None:
    store.set("agree/0/verdict", "rank 0 failed")
    assert agreement.rounds("group") == 1


@pytest.mark.parametrize("_", range(20))
def test_both_at_once(_: int, store: Any) -> None:
    """The rank goes on to the next round if, and only if, its refusal was read."""
    found: list[Answer | None] = []
    reader = threading.Thread(target=lambda: found.append(read(store)))
    reader.start()
    number = agreement.rounds("group")
    if number == 0:
        store.set(KEY, SOUND)
    reader.join()
    assert [answer is not None and answer.error for answer in found] == [
        "ValueError: no" if number else ""
    ]
