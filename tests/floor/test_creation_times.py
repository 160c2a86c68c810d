"""The least possible time of an operation, which benchmarks compare with."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks.floor import creation_times, plain_creation_times
from tests.support.graphs import chain, mlp

TIMES = [creation_times, plain_creation_times]
BOTH = pytest.mark.parametrize("times", TIMES, ids=["graph modules", "plain modules"])


@pytest.mark.slow("compiles a program")
@BOTH
def test_a_time_for_each_repeat(times: Callable[..., list[float]]) -> None:
    seconds = times([chain(50), chain(20)], 7)
    assert len(seconds) == 7
    assert all(each > 0 for each in seconds)
    assert times([chain(50)], 0) == []


@pytest.mark.slow("compiles a program")
@BOTH
def test_larger_graphs_take_longer(times: Callable[..., list[float]]) -> None:
    small, large = (min(times([chain(size)], 5)) for size in (100, 2_000))
    assert large > 5 * small  # there are twenty times as many nodes


@BOTH
def test_what_is_created_is_gone_and_the_modules_stay_as_they_are(
    times: Callable[..., list[float]],
) -> None:
    module = chain(50)
    code, nodes, state = module.code, list(module.graph.nodes), set(vars(module))

    def objects() -> int:
        gc.collect()
        return sum(isinstance(each, (torch.fx.Node, nn.Module)) for each in gc.get_objects())

    times([module], 1)
    before = objects()
    times([module], 5)
    assert objects() == before
    assert list(module.graph.nodes) == nodes
    assert module.graph.owning_module is module
    assert set(vars(module)) == state
    module.recompile()
    assert module.code == code


def test_attributes_of_the_module_are_found_and_left_alone() -> None:
    module = mlp()
    held = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert {n.op for n in module.graph.nodes} >= {"get_attr", "call_module"}
    assert min(creation_times([module], 3)) > 0
    after = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    assert after.keys() == held.keys()
    assert all(after[name] is held[name] for name in held)


@pytest.mark.parametrize("op", ["get_attr", "call_module"])
def test_an_attribute_that_the_module_lacks(op: str) -> None:
    module = chain(3)
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.create_node(op, "not.there")
    with pytest.raises(AttributeError, match=r"not\.there"):
        creation_times([module], 1)


def test_modules_without_a_graph() -> None:
    modules: list[Any] = [nn.Linear(1, 1), chain(2_000)]
    assert min(plain_creation_times(modules, 5)) > 0
    with pytest.raises(AttributeError, match="graph"):
        creation_times(modules, 5)


def test_a_damaged_graph_is_an_error() -> None:
    module = chain(3)
    next(iter(module.graph.nodes)).op = "unknown"
    with pytest.raises(Exception, match="unknown"):
        creation_times([module], 1)
