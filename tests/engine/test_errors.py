"""Exceptions: the type and text that torch's Interpreter gives, and a module that still works."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

from fxpress._graphs import engine as native_engine
from fxpress._torch import fx as torch_fx
from tests.support.engine import assert_same, by_torch, engine, tower, unflattened


def error_of(call: Any) -> BaseException:
    with pytest.raises(Exception) as caught:
        call()
    return caught.value


def same_error(ours: BaseException, theirs: BaseException) -> None:
    assert type(ours) is type(theirs)
    assert str(ours) == str(theirs)
    assert ours.args == theirs.args
    assert type(ours.__cause__) is type(theirs.__cause__)


def test_nested_modules_are_all_named() -> None:
    _, module, x = tower()
    module.check_input_constraints = False
    bad = torch.randn(2, 7)
    theirs = error_of(lambda: module(bad))
    with engine():
        module(x)
        same_error(error_of(lambda: module(bad)), theirs)
        module(x)
    assert str(theirs).count("While executing") >= 3
    assert "Original traceback" in str(theirs)


class Fails(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor([0, 1])] + 1


def test_index_error() -> None:
    module = unflattened(Fails(), torch.randn(3))
    module.check_input_constraints = False
    bad = torch.randn(1)
    theirs = error_of(lambda: module(bad))
    with engine():
        same_error(error_of(lambda: module(bad)), theirs)


@pytest.mark.parametrize("error", [ValueError("a", 2), KeyError("k"), RuntimeError(), OSError(2)])
def test_errors_of_python_functions(error: Exception) -> None:
    def fail(x: Any) -> Any:
        raise type(error)(*error.args)

    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    y = graph.call_function(torch.ops.aten.neg.default, (x,))
    node = graph.call_function(fail, (y,))
    node.meta["stack_trace"] = "  here"
    graph.output(node)
    root, value = nn.Module(), torch.randn(2)
    theirs = error_of(lambda: by_torch(root, graph, value))
    same_error(error_of(lambda: native_engine.run(root, graph, (value,))), theirs)


def test_keyboard_interrupt_is_left_alone() -> None:
    def fail(x: Any) -> Any:
        raise KeyboardInterrupt("stop")

    graph = torch.fx.Graph()
    graph.output(graph.call_function(fail, (graph.placeholder("x"),)))
    with pytest.raises(KeyboardInterrupt) as caught:
        native_engine.run(nn.Module(), graph, (1,))
    assert caught.value.args == ("stop",)


def test_error_in_a_hook() -> None:
    _, module, x = tower()

    def fail(*_: object) -> None:
        raise ValueError("hook")

    handle = getattr(module.blocks, "1").up.register_forward_hook(fail)
    theirs = error_of(lambda: module(x))
    with engine():
        same_error(error_of(lambda: module(x)), theirs)
        handle.remove()
        ours = module(x)
    assert_same(ours, module(x))


class Repeated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x))


def test_dispatchers_start_over_after_errors() -> None:
    module = unflattened(Repeated(), torch.randn(2, 3), preserve=("inner",))
    assert len(module.inner._call_modules) == 2
    module.check_input_constraints = False
    bad = torch.randn(2, 7)
    theirs = error_of(lambda: module(bad))
    assert module.inner._num_calls == 0
    with engine():
        same_error(error_of(lambda: module(bad)), theirs)
    assert module.inner._num_calls == 0


def broken_graphs() -> dict[str, tuple[torch.fx.Graph, tuple[Any, ...]]]:
    graphs: dict[str, tuple[torch.fx.Graph, tuple[Any, ...]]] = {}

    def new(name: str, *args: Any) -> torch.fx.Graph:
        graphs[name] = (torch.fx.Graph(), args)
        return graphs[name][0]

    aten = torch.ops.aten
    graph = new("missing argument")
    graph.output(graph.placeholder("x"))
    graph = new("missing attribute")
    graph.output(graph.get_attr("no.such"))
    graph = new("attribute without a name")
    nameless = graph.get_attr("a")
    nameless.target = 3
    graph.output(nameless)
    graph = new("missing module", 1)
    graph.output(graph.call_module("no.such", (graph.placeholder("x"),)))
    graph = new("missing method", 1)
    graph.output(graph.call_method("no_such", (graph.placeholder("x"),)))
    graph = new("wrong type", "text")
    graph.output(graph.call_function(aten.neg.default, (graph.placeholder("x"),)))
    graph = new("missing operand", torch.randn(2))
    graph.output(graph.call_function(aten.add.Tensor, (graph.placeholder("x"),)))
    graph = new("unknown keyword", torch.randn(2))
    graph.output(graph.call_function(aten.neg.default, (graph.placeholder("x"),), {"z": 1}))
    graph = new("too many", torch.randn(2))
    x = graph.placeholder("x")
    graph.output(graph.call_function(aten.neg.default, (x, x, x)))
    graph = new("bad constant", torch.randn(2))
    graph.output(graph.call_function(aten.view.default, (graph.placeholder("x"), ["a"])))
    graph = new("used before", torch.randn(2))
    x = graph.placeholder("x")
    y = graph.call_function(aten.neg.default, (x,))
    z = graph.call_function(aten.sin.default, (y,))
    graph.output(z)
    y.prepend(z)
    graph = new("shapes", torch.randn(2), torch.randn(3))
    graph.output(
        graph.call_function(aten.add.Tensor, (graph.placeholder("x"), graph.placeholder("y")))
    )
    return graphs


@pytest.mark.parametrize("name", broken_graphs())
def test_broken_graphs(name: str) -> None:
    graph, args = broken_graphs()[name]
    root = nn.Module()
    theirs = error_of(lambda: by_torch(root, graph, *args))
    for _ in range(2):
        same_error(error_of(lambda: native_engine.run(root, graph, args)), theirs)


def test_the_log_of_a_graph_module_that_fails() -> None:
    graph = torch.fx.Graph()
    graph.output(graph.call_function(torch.ops.aten.neg.default, (graph.placeholder("x"),)))
    module = torch.fx.GraphModule(nn.Module(), graph)
    logs: list[Any] = []

    def log(name: str, metadata_fn: Any, payload_fn: Any) -> None:
        logs.append((name, metadata_fn(), payload_fn()))

    for place, run in (
        (torch_fx, lambda: native_engine.run(module, module.graph, ("text",))),
        (torch.fx.interpreter, lambda: torch.fx.Interpreter(module).run("text")),
    ):
        with mock.patch.object(place, "trace_structured", log):
            error_of(run)
    assert logs[0] == logs[1]


@pytest.mark.parametrize("args", [(), (1,), (nn.Module(), 3, ()), (nn.Module(), None, ())])
def test_what_is_no_call_of_run(args: tuple[Any, ...]) -> None:
    with pytest.raises((TypeError, AttributeError)):
        native_engine.run(*args)
