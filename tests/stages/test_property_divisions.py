"""Divisions of rows and programs against a search of all of them."""

from __future__ import annotations

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st

from fxpress._distributed.stages.lifetimes import Lifetimes, State
from fxpress._distributed.stages.memory import Memory
from fxpress._graphs.partition.runs import cheapest, least_limit
from tests.support.generated import examples


@st.composite
def rows(draw: st.DrawFn) -> tuple[list[int], list[int], list[list[int]], int]:
    """Weights in front of places, costs of cuts, reaches of runs, and a limit."""
    count = draw(st.integers(1, 9))
    weights = draw(st.lists(st.integers(0, 6), min_size=count, max_size=count))
    costs = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    runs = draw(st.integers(1, count))

    def reach() -> list[int]:
        ends = draw(st.lists(st.integers(0, count), min_size=count, max_size=count))
        return [max(at, *ends[: at + 1]) for at in range(count)]

    kind = draw(st.sampled_from(["free", "same", "each"]))
    same = [count] * count if kind == "free" else reach()
    reaches = [reach() for _ in range(runs)] if kind == "each" else [same] * runs
    before = [sum(weights[:at]) for at in range(count + 1)]
    return before, [0, *costs[1:], 0], reaches, draw(st.integers(0, sum(weights)))


def divisions(count: int, reach: list[list[int]]) -> list[list[int]]:
    """Return the ends of all divisions into runs that are not empty and keep their reaches."""
    return [
        [*cuts, count]
        for cuts in combinations(range(1, count), len(reach) - 1)
        if all(
            end <= ends[start]
            for (start, end), ends in zip(pairwise([0, *cuts, count]), reach, strict=True)
        )
    ]


def heaviest(before: list[int], ends: list[int]) -> int:
    return max(before[end] - before[start] for start, end in pairwise([0, *ends]))


@given(rows())
@examples(400)
def test_cheapest(row: tuple[list[int], list[int], list[list[int]], int]) -> None:
    before, costs, reach, limit = row
    allowed = [
        ends for ends in divisions(len(before) - 1, reach) if heaviest(before, ends) <= limit
    ]
    found = cheapest(before, costs, reach, limit)
    if not allowed:
        assert found is None
        return
    assert found in allowed
    least = min(sum(costs[end] for end in ends[:-1]) for ends in allowed)
    left = [ends for ends in allowed if sum(costs[end] for end in ends[:-1]) == least]
    for run in range(len(reach) - 1):  # each in turn closest to an equal share of what is left
        start = left[0][run - 1] if run else 0
        share = (before[-1] - before[start]) / (len(reach) - run)
        distance = {
            ends[run]: (abs(before[ends[run]] - before[start] - share), -before[ends[run]])
            for ends in left
        }
        closest = min(distance.values())
        last = max(end for end, each in distance.items() if each == closest)
        left = [ends for ends in left if ends[run] == last]
    assert [found] == left


@given(rows())
@examples(400)
def test_least_limit(row: tuple[list[int], list[int], list[list[int]], int]) -> None:
    """If all operations may reach equally far, a division of the least limit has no empty run."""
    before, _, reach, _ = row
    same = [reach[0]] * len(reach)
    allowed = divisions(len(before) - 1, same)
    wanted = min((heaviest(before, ends) for ends in allowed), default=None)
    assert least_limit(before, same) == wanted


@st.composite
def held(draw: st.DrawFn) -> tuple[Lifetimes, list[int]]:
    """Bytes of state and values of some operations, and places among them."""
    count = draw(st.integers(1, 8))
    numbers = st.lists(st.integers(0, 9), min_size=count, max_size=count)
    keys = st.lists(st.sampled_from("abcd"), max_size=3, unique=True).map(tuple)
    uses = draw(st.lists(keys, min_size=count, max_size=count))
    state = {key: State(draw(st.integers(0, 9))) for key in "abcd"}
    inner = draw(st.lists(st.integers(1, count), unique=True).map(sorted))
    lives = Lifetimes([0] * count, draw(numbers), draw(numbers), list(uses), dict(state), [])
    return lives, sorted({0, *inner, count})


def bytes_between(lives: Lifetimes, start: int, end: int) -> int:
    used = set().union(*lives.uses[start:end])
    state = sum(lives.state[key].nbytes for key in used)
    return state + max(lives.alive[start:end]) + sum(lives.written[start:end])


@given(held(), st.integers(0, 60), st.integers(1, 8))
@examples(400)
def test_memory(given: tuple[Lifetimes, list[int]], limit: int, stages: int) -> None:
    lives, places = given
    memory, last = Memory(lives, places), len(places) - 1
    for start, found in enumerate(memory.reach(limit)):
        fitting = [
            end
            for end in range(start + 1, last + 1)
            if bytes_between(lives, places[start], places[end]) <= limit
        ]
        assert found == max(fitting, default=start)
    stages = min(stages, last)
    wanted = min(
        max(bytes_between(lives, places[a], places[b]) for a, b in pairwise([0, *cuts, last]))
        for cuts in combinations(range(1, last), stages - 1)
    )
    assert memory.least(stages) == wanted
