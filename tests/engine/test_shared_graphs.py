"""Several modules with one graph: copies, and the replicas of data-parallel runs."""

from __future__ import annotations

import copy
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import fx, nn

from fxpress._graphs import engine
from fxpress.unflatten import InterpreterModule
from tests.support.engine import assert_same, by_torch, interpreter_module

aten = torch.ops.aten


def scaling() -> fx.Graph:
    graph = fx.Graph()
    x, scale = graph.placeholder("x"), graph.get_attr("scale")
    graph.output(graph.call_function(aten.mul.Tensor, (x, scale)))
    return graph


def scaled_by(value: float) -> nn.Module:
    root = nn.Module()
    root.register_buffer("scale", torch.full((2,), value))
    return root


def test_the_last_module_that_ran_a_graph_may_die() -> None:
    graph, x = scaling(), torch.ones(2)
    root = scaled_by(2.0)
    assert_same(engine.run(root, graph, (x,)), by_torch(root, graph, x))
    alive = weakref.ref(root), weakref.ref(root.scale)
    del root
    assert [ref() for ref in alive] == [None, None]
    root = scaled_by(3.0)  # in the same place, perhaps
    assert_same(engine.run(root, graph, (x,)), by_torch(root, graph, x))


def test_one_that_failed_may_die() -> None:
    graph = scaling()
    root = scaled_by(2.0)
    with pytest.raises(RuntimeError, match="While executing"):
        engine.run(root, graph, (torch.ones(3),))
    alive = weakref.ref(root)
    del root
    assert alive() is None


def test_modules_that_take_turns_share_the_plan() -> None:
    graph, x = scaling(), torch.ones(2)
    roots = [scaled_by(2.0), scaled_by(3.0), scaled_by(4.0)]
    engine.run(roots[0], graph, (x,))
    plan = vars(graph)["_fxpress_plan"]
    for _ in range(3):
        for root in roots:
            assert_same(engine.run(root, graph, (x,)), by_torch(root, graph, x))
    assert vars(graph)["_fxpress_plan"] is plan


def test_a_run_within_a_run_of_the_same_graph() -> None:
    roots = [scaled_by(value) for value in (2.0, 3.0, 4.0)]

    def again(x: torch.Tensor) -> torch.Tensor:
        deeper.append(deeper[-1] + 1)
        run = runs[-1]
        return run(roots[deeper[-1]], graph, x) if deeper[-1] < 3 else x

    runs: list[Any] = []
    deeper = [0]
    graph = fx.Graph()
    y = graph.call_function(again, (graph.placeholder("x"),))
    graph.output(graph.call_function(aten.mul.Tensor, (y, graph.get_attr("scale"))))
    x = torch.ones(2)
    for run in (by_torch, lambda root, graph, x: engine.run(root, graph, (x,))) * 2:
        runs.append(run)
        deeper[:] = [0]
        assert run(roots[0], graph, x).tolist() == [24.0, 24.0]


def test_copies_of_a_module_with_submodules() -> None:
    root = interpreter_module(scaling(), scale=torch.full((2,), 2.0))
    graph = fx.Graph()
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    outer = nn.Module()
    outer.inner = root
    other = copy.copy(outer)
    other._modules = dict(outer._modules)
    x = torch.ones(2)
    for module in (outer, other) * 3:
        assert_same(engine.run(module, graph, (x,)), by_torch(module, graph, x))
    other._modules["inner"] = interpreter_module(scaling(), scale=torch.full((2,), 3.0))
    for module in (outer, other) * 3:
        assert_same(engine.run(module, graph, (x,)), by_torch(module, graph, x))


def test_replicas_in_threads() -> None:
    inner = fx.Graph()
    a, w = inner.placeholder("a"), inner.get_attr("w")
    product = inner.call_function(aten.mul.Tensor, (a, w))
    inner.output(inner.call_function(aten.add.Tensor, (product, w)))
    module: Any = InterpreterModule(inner)
    module.arg_names = ["a"]
    module.w = nn.Parameter(torch.ones(4))
    graph = fx.Graph()
    y = graph.placeholder("x")
    for _ in range(5):
        y = graph.call_function(aten.relu.default, (graph.call_module("inner", (y,)),))
    graph.output(y)
    root: Any = InterpreterModule(graph)
    root.arg_names = ["x"]
    root.inner = module

    def replica(value: float) -> Any:
        made, part = root._replicate_for_data_parallel(), module._replicate_for_data_parallel()
        part.w = torch.full((4,), value)
        made._modules["inner"] = part
        return made

    def work(value: float) -> int:
        expected = torch.ones(4)
        for _ in range(5):
            expected = (expected * value + value).relu()
        wrong = 0
        for _ in range(150):
            own = replica(value)
            wrong += sum(not torch.equal(own(torch.ones(4)), expected) for _ in range(3))
        return wrong

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(work, [1.0, 2.0, 3.0, 4.0])) == [0, 0, 0, 0]
    finally:
        sys.setswitchinterval(interval)
