"""balanced() against every way to cut a short list."""

from __future__ import annotations

import operator
from itertools import combinations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import fx, nn

from fxpress.partition import balanced
from tests.support.generated import examples

# Zeros often: most nodes of a real graph use no state.
WEIGHTS = st.lists(st.one_of(st.just(0), st.integers(0, 12)), min_size=1, max_size=8)


def chain_of(weights: list[int]) -> fx.GraphModule:
    """A graph with one operation a weight, which is the first to use as many elements of state."""
    root = nn.Module()
    graph = fx.Graph()
    value = graph.placeholder("x")
    for index, weight in enumerate(weights):
        if weight:
            root.register_buffer(f"state_{index}", torch.empty(weight, device="meta"))
            used = graph.get_attr(f"state_{index}")
        else:
            used = value
        value = graph.call_function(operator.add, (value, used))
    graph.output(value)
    return fx.GraphModule(root, graph)


def least_maximum(weights: list[int], n: int) -> int:
    return min(
        max(sum(weights[i:j]) for i, j in zip((0, *cuts), (*cuts, len(weights)), strict=True))
        for cuts in combinations(range(1, len(weights)), n - 1)
    )


@examples(100)
@given(weights=WEIGHTS.filter(any), data=st.data())
def test_bottleneck_is_the_optimum(weights: list[int], data: st.DataObject) -> None:
    n = data.draw(st.integers(1, len(weights)), label="n")
    callback = balanced(chain_of(weights), n)
    ids = list(callback.values())
    assert ids == sorted(ids)
    assert set(ids) == set(range(n))  # no stage is empty, none is left out
    assert callback.count == n
    stages = [0] * n
    for stage, weight in zip(ids, weights, strict=True):
        stages[stage] += weight
    assert max(stages) == least_maximum(weights, n)


@examples(50)
@given(count=st.integers(1, 12), data=st.data())
def test_by_nodes_is_even(count: int, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, count), label="n")
    ids = list(balanced(chain_of([0] * count), n, by="nodes").values())
    assert ids == sorted(ids)
    assert set(ids) == set(range(n))
    assert max(ids.count(stage) for stage in range(n)) == -(-count // n)
