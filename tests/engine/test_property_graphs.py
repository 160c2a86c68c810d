"""Random trees of modules, with random hooks and edits, against torch's Interpreter."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.engine import assert_same, engine, interpreter_module

aten = torch.ops.aten


def through_python(x: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    return x * 0.5 + sum(o.sum() for o in others)


def both(x: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    return x.cos(), [x.sin(), x]


class Maker:
    """Makes modules whose values are all tensors of three elements."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.shared: list[tuple[Any, int]] = []

    def module(self, depth: int, arity: int, results: int) -> Any:
        graph = torch.fx.Graph()
        values = [graph.placeholder(f"x{i}") for i in range(arity)]
        members: dict[str, Any] = {"w": nn.Parameter(torch.randn(3)), "c": torch.randn(3)}
        values.append(graph.get_attr("w"))
        for _ in range(self.rng.randrange(2, 9)):
            values += self.call(graph, values, members, depth)
        outputs = [self.rng.choice(values) for _ in range(results)]
        graph.output(tuple(outputs) if results > 1 else outputs[0])
        return interpreter_module(graph, **members)

    def call(self, graph: Any, values: list[Any], members: dict[str, Any], depth: int) -> list[Any]:
        pick = lambda: self.rng.choice(values[-6:])  # noqa: E731
        get = lambda v, i: graph.call_function(operator.getitem, (v, i))  # noqa: E731
        kind = self.rng.randrange(9)
        if kind == 0:
            return [graph.call_function(aten.add.Tensor, (pick(), self.rng.choice([pick(), 2])))]
        if kind == 1:
            return [graph.call_function(aten.sin.default, (pick(),)), graph.get_attr("c")]
        if kind == 2:
            joined = graph.call_function(aten.cat.default, ([pick(), pick(), pick()],))
            parts = graph.call_function(aten.chunk.default, (joined, 3))
            return [get(parts, i) for i in self.rng.sample([0, 1, -1], self.rng.randrange(1, 4))]
        if kind == 3:
            return [graph.call_function(through_python, (pick(), pick()))]
        if kind == 4:
            pair = graph.call_function(both, (pick(),))
            return [get(pair, 0), get(get(pair, 1), self.rng.randrange(2))]
        if kind == 5:
            return [graph.call_method("mul", (pick(), pick()))]
        if depth == 0:
            return [graph.call_function(aten.tanh.default, (pick(),))]
        return self.call_module(graph, pick, members, depth)

    def call_module(self, graph: Any, pick: Any, members: dict[str, Any], depth: int) -> list[Any]:
        name = f"m{len(members)}"
        arity, results = self.rng.randrange(1, 4), self.rng.randrange(1, 4)
        members[name] = self.module(depth - 1, arity, results)
        values = []
        for _ in range(self.rng.randrange(1, 3)):
            args = [pick() if self.rng.randrange(30) else 0.5 + i for i in range(arity - 1)]
            node = graph.call_module(name, (pick(), *args))
            chosen = self.rng.sample(range(results), self.rng.randrange(1, results + 1))
            values += [node]
            if results > 1:
                values.pop()
                values += [graph.call_function(operator.getitem, (node, i)) for i in chosen]
        return values


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


def disturb(root: nn.Module, rng: random.Random, log: list[str]) -> list[Any]:
    """Hooks on some modules; some of them add or remove hooks of others."""
    modules = [(n, m) for n, m in root.named_modules() if n]
    handles: list[Any] = []
    for name, module in rng.sample(modules, min(len(modules), rng.randrange(4))):
        other = rng.choice(modules)[1]

        def hook(*_: Any, name: str = name, other: nn.Module = other) -> None:
            log.append(name)
            if len(name) % 2 and len(handles) < 20:
                handles.append(other.register_forward_pre_hook(lambda *a: log.append("added")))

        handles.append(module.register_forward_hook(hook))
    return handles


@pytest.mark.parametrize("seed", range(120))
def test_random_modules(seed: int) -> None:
    torch.manual_seed(seed)
    maker = Maker(seed)
    root = maker.module(depth=3, arity=2, results=2)
    inputs = (torch.randn(3), torch.randn(3))
    for round_ in range(3):
        outcomes: list[Any] = []
        for ours in (False, True):
            log: list[str] = []
            rng = random.Random(seed * 7 + round_)
            handles = disturb(root, rng, log) if round_ else []
            with engine() if ours else nullcontext():
                result = outcome(lambda: root(*inputs))
            for handle in handles:
                handle.remove()
            outcomes.append((result, log))
        assert_same(outcomes[1][0], outcomes[0][0])
        assert outcomes[1][1] == outcomes[0][1]
