"""Code that a graph runs: it raises, runs the graph again, or edits it, at any node."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import export
from torch.fx import Graph

from fxpress._graphs import engine
from fxpress.unflatten import unflatten
from tests.support.edits import EDITS, interrupt, strike
from tests.support.hostile import Key, Model, Moment, Struck, arguments, outcome


class Calls(nn.Module):
    """A leaf that runs code."""

    def __init__(self) -> None:
        super().__init__()
        self.moment: Moment | None = None

    def forward(self, x: torch.Tensor, **others: Any) -> torch.Tensor:
        if self.moment is not None:
            self.moment()
        return x + 1


def graph_of(length: int, keyword: str = "other") -> tuple[nn.Module, Graph]:
    """Operators that run without Python and calls of a leaf, in turn."""
    root = nn.Module()
    root.leaf = Calls()
    graph = Graph()
    node = graph.placeholder("x")
    for _ in range(length):
        node = graph.call_function(torch.ops.aten.tanh.default, (node,))
        node = graph.call_module("leaf", (node,), {keyword: [node, {"a": node}]})
    graph.output((node,))
    return root, graph


def run(root: nn.Module, graph: Graph) -> Any:
    return engine.run(root, graph, (torch.ones(2),))


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.__name__)
def test_edits(edit: Callable[[Graph], None], planned: bool) -> None:
    for at in range(5):
        root, graph = graph_of(4)
        if planned:
            run(root, graph)
        root.leaf.moment = moment = Moment(at, lambda graph=graph: edit(graph))
        moment.armed = True
        error = outcome(lambda _, root=root, graph=graph: run(root, graph), None)
        if edit is strike:
            assert isinstance(error, Struck) == (at < 4)
        moment.armed = False
        outcome(lambda _, root=root, graph=graph: run(root, graph), None)


def test_interrupt_and_run_again() -> None:
    root, graph = graph_of(4)
    expected = run(root, graph)
    for at in range(4):
        root.leaf.moment = Moment(at, lambda: interrupt(graph))
        root.leaf.moment.armed = True
        with pytest.raises(KeyboardInterrupt):
            run(root, graph)
        root.leaf.moment = None
        assert torch.equal(run(root, graph)[0], expected[0])


def test_runs_within_runs() -> None:
    root, graph = graph_of(3)
    expected = run(root, graph)
    made: list[Any] = []
    root.leaf.moment = Moment(1, lambda: made.append(run(root, graph)))
    root.leaf.moment.armed = True
    assert torch.equal(run(root, graph)[0], expected[0])
    assert torch.equal(made[0][0], expected[0])


def test_keywords_that_run_code() -> None:
    for at in range(40):
        key = Key("other")
        root, graph = graph_of(2)

        def empty(graph: Graph = graph) -> None:
            for node in graph.nodes:
                dict.clear(node._kwargs)
                node._args = ()

        for node in graph.nodes:
            node._kwargs = dict.fromkeys([key] if node.kwargs else [], node.kwargs.get("other"))
        key.moment = Moment(at, empty)
        key.moment.armed = True
        outcome(lambda _, root=root, graph=graph: run(root, graph), None)
        if key.moment.left >= 0:
            break
    assert at < 39


def below(calls: int, function: Callable[[], Any]) -> Any:
    """Call a function below calls of C, which take space on the stack."""
    if calls == 0:
        return function()
    return functools.reduce(lambda *_: below(calls - 1, function), [None], None)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_greenlets_that_wait_in_hooks(order: tuple[int, ...]) -> None:
    """The stack of a run that waits is elsewhere, and others end before it."""
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer does not know the stacks of greenlets")
    greenlet = pytest.importorskip("greenlet")
    program = export(Model(), arguments(), strict=False, preserve_module_call_signature=("inner",))
    made = unflatten(program)
    expected = made(*arguments())

    def wait(*_: Any) -> None:
        greenlet.getcurrent().parent.switch()

    for module in made.modules():
        if type(module).__name__ == "InterpreterModule" or module is made.inner:
            module.register_forward_pre_hook(wait)

    def run() -> None:
        results.append(made(*arguments()))

    for _ in range(3):
        results: list[torch.Tensor] = []
        running = [greenlet.greenlet(lambda n=n: below(5 * n, run)) for n in (0, 1, 5)]
        for each in running:
            each.switch()
        for number in order:
            while not running[number].dead:
                running[number].switch()
        assert len(results) == 3
        for result in results:
            assert torch.equal(result, expected)
