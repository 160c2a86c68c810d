"""Plans of small programs compared with all possible cuts, and with the memory of the stages."""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.cut import Cut, cut
from fxpress._distributed.stages.plan import plan
from fxpress.partition import SplitCallback
from tests.support.generated import examples
from tests.support.made_programs import Maker, aten


@st.composite
def programs(draw: st.DrawFn) -> ExportedProgram:
    """Sums, concatenations and activations of parameters, inputs and earlier values."""
    sizes = st.lists(st.integers(1, 6), min_size=1, max_size=3)
    maker = Maker(draw(sizes), draw(sizes))
    values = [*maker.inputs]
    for _ in range(draw(st.integers(2, 7))):
        kind = draw(st.sampled_from(["sin", "cat", "weigh"]))
        value = draw(st.sampled_from(values))
        if kind == "sin":
            made = maker.call(aten.sin.default, value)
        else:
            others = maker.parameters if kind == "weigh" else values
            made = maker.call(aten.cat.default, [value, draw(st.sampled_from(others))])
        values.append(made)
    computed = values[len(maker.inputs) :]
    results = draw(st.lists(st.sampled_from(computed), min_size=1, max_size=2, unique=True))
    if not any(user.op == "call_function" for node in maker.parameters for user in node.users):
        values.append(maker.call(aten.cat.default, [values[-1], maker.parameters[0]]))
    return maker.program(results)


def size(node: Node) -> int:
    return int(node.meta["val"].nbytes)


def stages_of(program: ExportedProgram, ends: tuple[int, ...]) -> Cut:
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    ids = {
        node: stage
        for stage, (start, end) in enumerate(pairwise([0, *ends]))
        for node in nodes[start:end]
    }
    return cut(program, SplitCallback(ids, "a test"))


def crossing(made: Cut, after: int) -> int:
    """Return the bytes that pass from a stage to the next, each value from its stage on."""
    needed = {node for stage in made.stages[after + 1 :] for node in stage.inputs}
    results = {value for value, _ in made.ends.results}
    passing = {node for node in needed | results if made.maker.get(node, 0) <= after}
    return sum(map(size, passing))


def activations(made: Cut, number: int) -> int:
    """Return the most bytes of values that are held at once, by going through the stage."""
    results = {value for value, _ in made.ends.results}
    kept = results.union(*(stage.inputs for stage in made.stages[number + 1 :]))
    stage = made.stages[number]
    held = {node for node in kept.union(stage.inputs) if made.maker.get(node, -1) < number}
    most = 0
    for at, node in enumerate(stage.operations):
        held.add(node)
        most = max(most, sum(map(size, held)))
        later = {source for each in stage.operations[at + 1 :] for source in each.all_input_nodes}
        held = {each for each in held if each in kept or each in later}
    return most


def described(program: ExportedProgram, ends: tuple[int, ...]) -> dict[str, Any]:
    made = stages_of(program, ends)
    seen: set[Node] = set()
    weights = []
    for stage in made.stages:
        weights.append(sum(size(node) // 4 for node in stage.state if node not in seen))
        seen |= set(stage.state)
    return {
        "weights": tuple(weights),
        "state_bytes": tuple(sum(map(size, stage.state)) for stage in made.stages),
        "activation_bytes": tuple(activations(made, number) for number in range(len(ends))),
        "crossing_bytes": tuple(crossing(made, number) for number in range(len(ends) - 1)),
    }


@given(programs(), st.integers(1, 4), st.sampled_from([0.0, 0.05, 0.5]), st.booleans())
@examples(150)
def test_plans(program: ExportedProgram, stages: int, slack: float, is_limited: bool) -> None:
    count = sum(node.op == "call_function" for node in program.graph.nodes)
    stages = min(stages, count)
    every = {
        ends: described(program, ends)
        for cuts in combinations(range(1, count), stages - 1)
        for ends in [(*cuts, count)]
    }

    def memory(ends: tuple[int, ...]) -> int:
        held = every[ends]
        return max(map(sum, zip(held["state_bytes"], held["activation_bytes"], strict=True)))

    limit = None
    if is_limited:
        limit = sorted(map(memory, every))[len(every) // 4]
        least = min(map(memory, every))
        with pytest.raises(StageError, match=rf" {least:,}$"):
            plan(program, stages, memory=least - 1)
    found = plan(program, stages, memory=limit, slack=slack)
    for name, value in every[found.ends].items():
        assert getattr(found, name) == value, name
    allowed = [ends for ends in every if limit is None or memory(ends) <= limit]
    best = min(max(every[ends]["weights"]) for ends in allowed)
    even = [ends for ends in allowed if max(every[ends]["weights"]) <= best + int(best * slack)]
    assert found.ends in even
    assert sum(found.crossing_bytes) == min(sum(every[ends]["crossing_bytes"]) for ends in even)
