"""Python code that runs in hidden places, and changes values that the engine has read ahead."""

from __future__ import annotations

import signal
import threading
import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import fx, nn

from fxpress._graphs import engine as native_engine
from fxpress.unflatten import InterpreterModule
from tests.support.engine import assert_same, by_torch, engine, interpreter_module

aten = torch.ops.aten


def weighted(*functions: Any) -> tuple[nn.Module, fx.Graph]:
    """exp(x) * w, after calls of the functions on x; `w` is read after these calls."""
    root = nn.Module()
    root.w = nn.Parameter(torch.ones(3))
    graph = fx.Graph()
    y = graph.placeholder("x")
    for function in functions:
        y = graph.call_function(function, (y,))
    y = graph.call_function(aten.exp.default, (y,))
    graph.output(graph.call_function(aten.mul.Tensor, (y, graph.get_attr("w"))))
    return root, graph


def same_after(change: Any, root: nn.Module, graph: fx.Graph, x: torch.Tensor) -> torch.Tensor:
    """Both sides give the same result, if each starts from the weights that `change` leaves."""
    change()
    theirs = by_torch(root, graph, x)
    for _ in range(2):
        change()
        assert_same(native_engine.run(root, graph, (x,)), theirs)
    return theirs  # type: ignore[no-any-return]


def set_weight(root: nn.Module, value: float) -> None:
    root._parameters["w"] = nn.Parameter(torch.full((3,), value))


def test_hooks_of_saved_tensors() -> None:
    root, graph = weighted()

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        set_weight(root, 5.0)
        return tensor

    x = torch.zeros(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = same_after(lambda: set_weight(root, 1.0), root, graph, x)
    assert result.tolist() == [5.0] * 3


@contextmanager
def python_exp(kernel: Any) -> Iterator[None]:
    with warnings.catch_warnings(), torch.library._scoped_library("aten", "IMPL") as library:
        warnings.simplefilter("ignore")  # there is a kernel already
        library.impl("exp", kernel, "CPU")
        yield


@pytest.mark.parametrize("planned", [False, True], ids=["before", "after"])
def test_kernels_in_python_for_operators_of_torch(planned: bool) -> None:
    root, graph = weighted()

    def kernel(x: torch.Tensor) -> torch.Tensor:
        set_weight(root, 5.0)
        return x + 1

    x = torch.zeros(3)
    if planned:  # and not made for such a kernel
        native_engine.run(root, graph, (x,))
    with python_exp(kernel):
        assert same_after(lambda: set_weight(root, 1.0), root, graph, x).tolist() == [5.0] * 3
    set_weight(root, 1.0)
    assert native_engine.run(root, graph, (x,)).tolist() == [1.0] * 3


def test_a_kernel_in_python_that_comes_while_the_graph_runs() -> None:
    def kernel(x: torch.Tensor) -> torch.Tensor:
        set_weight(root, 5.0)
        return x + 1

    def register(x: torch.Tensor) -> torch.Tensor:
        found = python_exp(kernel)
        found.__enter__()
        registered.append(found)
        return x

    registered: list[Any] = []
    root, graph = weighted(register)
    x = torch.zeros(3)
    try:
        for run in (lambda: by_torch(root, graph, x), lambda: native_engine.run(root, graph, (x,))):
            set_weight(root, 1.0)
            assert run().tolist() == [5.0] * 3
            registered.pop().__exit__(None, None, None)
    finally:
        for left in registered:
            left.__exit__(None, None, None)


class Swapping(torch.Tensor):
    """Sends operators to Python, which replaces the buffer `w`."""

    owner: nn.Module

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        cls.owner._buffers["w"] = torch.full((1000,), 2.0)
        return torch.ones(1000)


def test_a_finalizer_of_a_weight_that_was_read_ahead() -> None:
    # The operator that goes to Python frees the weight that was read ahead of it; its finalizer
    # frees the one that has come in its place.
    root, graph = nn.Module(), fx.Graph()
    x, other = graph.placeholder("x"), graph.placeholder("other")
    y = graph.call_function(aten.relu.default, (x,))
    y = graph.call_function(aten.add.Tensor, (y, other))
    graph.output(graph.call_function(aten.add.Tensor, (y, graph.get_attr("w"))))
    Swapping.owner = root
    log: list[str] = []

    def finalize() -> None:
        log.append("finalized")
        root._buffers["w"] = torch.full((1000,), 3.0)

    args = torch.zeros(1000), torch.ones(1000).as_subclass(Swapping)
    for run in (by_torch, lambda *all_: native_engine.run(all_[0], all_[1], all_[2:])):
        for _ in range(3):
            log.clear()
            first = torch.full((1000,), 1.0)
            weakref.finalize(first, finalize)
            root._buffers["w"] = first
            del first
            assert torch.equal(run(root, graph, *args), torch.full((1000,), 4.0))
            assert log == ["finalized"]


@pytest.mark.parametrize("place", ["_buffers", "_parameters"])
def test_a_member_that_comes_in_front_of_an_inlined_module(place: str) -> None:
    inner = fx.Graph()
    inner.output(inner.call_function(aten.neg.default, (inner.placeholder("a"),)))
    root, graph = nn.Module(), fx.Graph()
    root.inner = interpreter_module(inner)
    graph.output(graph.call_module("inner", (graph.placeholder("x"),)))
    x = torch.ones(2)
    with engine():
        assert_same(native_engine.run(root, graph, (x,)), -x)
        members: Any = getattr(root, place)
        members["inner"] = lambda value: value * 100  # nn.Module finds these first
        assert_same(native_engine.run(root, graph, (x,)), by_torch(root, graph, x))
        del members["inner"]
        assert_same(native_engine.run(root, graph, (x,)), by_torch(root, graph, x))


class Zeros(InterpreterModule):
    """Binds keywords in its own way."""

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        return (torch.zeros(2),)


@pytest.mark.parametrize("on", ["class", "instance"])
def test_a_module_that_binds_its_arguments_itself(on: str) -> None:
    inner = fx.Graph()
    inner.output(inner.call_function(aten.neg.default, (inner.placeholder("a"),)))
    module = (Zeros if on == "class" else InterpreterModule)(inner)
    module.arg_names = ["a"]
    root, graph = nn.Module(), fx.Graph()
    root.inner = module
    graph.output(graph.call_module("inner", (), {"a": graph.placeholder("x")}))
    x = torch.ones(2)
    assert_same(native_engine.run(root, graph, (x,)), by_torch(root, graph, x))
    if on == "instance":
        vars(module)["_positional"] = lambda args, kwargs: (torch.zeros(2),)
    assert_same(native_engine.run(root, graph, (x,)), by_torch(root, graph, x))
    assert_same(native_engine.run(root, graph, (x,)), -torch.zeros(2))


def test_a_signal_in_the_last_operator_of_a_graph_without_output() -> None:
    graph = fx.Graph()
    y = graph.placeholder("x")
    for _ in range(3):
        y = graph.call_function(aten.neg.default, (y,))
    graph.call_function(aten.mm.default, (y, y))  # the fourth, where the clock is read

    def interrupt(*_: Any) -> None:
        raise ValueError("interrupted")

    size, seconds = 256, 0.0
    while seconds < 0.2:
        size *= 2
        x = torch.ones(size, size)
        start = time.perf_counter()
        native_engine.run(nn.Module(), graph, (x,))
        seconds = time.perf_counter() - start
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ValueError, match="interrupted\n\nWhile executing %mm_default"):
            native_engine.run(nn.Module(), graph, (x,))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def test_functions_in_c_let_other_threads_run() -> None:
    graph = fx.Graph()
    x = graph.placeholder("x")
    for _ in range(40):
        y = graph.call_function(sum, (x,))
    graph.output(y)
    numbers = list(range(1_000_000))
    root = nn.Module()
    native_engine.run(root, graph, (numbers,))
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    start = time.perf_counter()
    native_engine.run(root, graph, (numbers,))
    end = time.perf_counter()
    stop.set()
    thread.join()
    tenth = (end - start) / 10
    assert [at for at in ticks if start + tenth < at < end - tenth]
