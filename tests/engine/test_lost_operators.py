"""Operators that are removed or replaced while a plan refers to them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode

from fxpress._graphs import engine
from tests.support.engine import assert_same

SPACE = "fxpress_lost"


def define(kernel: Callable[..., Any], key: str = "CompositeExplicitAutograd") -> Any:
    library = torch.library.Library(SPACE, "FRAGMENT")
    library.define("f(Tensor x) -> Tensor")
    library.impl("f", kernel, key)
    return library


@contextmanager
def defined(kernel: Callable[..., Any], key: str = "CompositeExplicitAutograd") -> Iterator[Any]:
    library = define(kernel, key)
    try:
        yield library
    finally:
        library._destroy()


def graph_of(times: int = 3) -> torch.fx.Graph:
    """Calls the operator again and again, between operators that stay."""
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for _ in range(times):
        node = graph.call_function(torch.ops.aten.mul.Tensor, (node, 2))
        node = graph.call_function(getattr(torch.ops, SPACE).f.default, (node,))
    graph.output(node)
    return graph


def run(graph: torch.fx.Graph, x: torch.Tensor) -> Any:
    return engine.run(torch.nn.Module(), graph, (x,))


X = torch.ones(3)


@pytest.mark.parametrize("key", ["CompositeExplicitAutograd", "CPU", "AutogradCPU"])
@pytest.mark.parametrize("explicit", [True, False])
def test_an_operator_that_is_gone_is_an_error(key: str, explicit: bool) -> None:
    """torch's own call of one ends the process."""
    library = define(lambda x: x + 1, key)
    graph = graph_of()
    assert_same(run(graph, X), X * 8 + 7)
    if explicit:
        library._destroy()
    del library
    gc.collect()
    for _ in range(3):
        with pytest.raises(RuntimeError, match=f"{SPACE}::f was removed") as caught:
            run(graph, X)
    assert "f.default](args" in str(caught.value)  # which node it is


def test_the_operator_that_has_the_name_now_is_called() -> None:
    with defined(lambda x: x + 1):
        graph = graph_of()
        assert_same(run(graph, X), X * 8 + 7)
    for added in (10, 100):
        with defined(lambda x, added=added: x + added):
            assert_same(run(graph, X), X * 8 + 7 * added)
            assert engine.plan_info(graph)["boxed"] == 6
            with BaseTorchFunctionMode():  # the way through Python
                assert_same(run(graph, X), X * 8 + 7 * added)


def test_an_operator_that_goes_in_the_middle_of_a_run() -> None:
    library = define(lambda x: x + 1)
    overload = getattr(torch.ops, SPACE).f.default

    def destroy(x: torch.Tensor) -> torch.Tensor:
        library._destroy()
        return x

    graph = torch.fx.Graph()
    node = graph.call_function(overload, (graph.placeholder("x"),))
    node = graph.call_function(destroy, (node,))
    graph.output(graph.call_function(overload, (node,)))
    with pytest.raises(RuntimeError, match="was removed"):
        run(graph, X)


def test_another_thread_destroys_a_library_during_operators_without_python() -> None:
    library = define(lambda x: x + 1)
    begun = threading.Event()

    def begin(x: torch.Tensor) -> torch.Tensor:
        begun.set()
        return x

    def destroy() -> None:
        begun.wait(60)
        library._destroy()

    graph = torch.fx.Graph()
    node = graph.call_function(begin, (graph.placeholder("x"),))
    for _ in range(6):  # without the GIL, for long enough
        node = graph.call_function(torch.ops.aten.mm.default, (node, node))
    graph.output(graph.call_function(getattr(torch.ops, SPACE).f.default, (node,)))
    thread = threading.Thread(target=destroy)
    thread.start()
    with pytest.raises(RuntimeError, match="was removed"):
        run(graph, torch.zeros(800, 800))
    thread.join()


def test_kernels_that_come_and_go() -> None:
    """A library that only implements a kernel: the operator stays, and its result changes."""
    with defined(lambda x: x + 1):
        graph = graph_of()
        for added in (10, 20):
            assert_same(run(graph, X), X * 8 + 7)
            library = torch.library.Library(SPACE, "IMPL")
            library.impl("f", lambda x, added=added: x + added, "CPU")
            assert_same(run(graph, X), X * 8 + 7 * added)
            library._destroy()
        assert_same(run(graph, X), X * 8 + 7)


def test_plans_of_lost_operators_die() -> None:
    def once() -> Any:
        with defined(lambda x: x + 1):
            graph = graph_of()
            run(graph, X)
        with pytest.raises(RuntimeError):
            run(graph, X)
        return weakref.ref(graph)

    graphs = [once() for _ in range(5)]
    gc.collect()
    assert [graph() for graph in graphs] == [None] * 5
