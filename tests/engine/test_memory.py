"""Threads, memory, reference counts, copies and pickles, and Ctrl-C."""

from __future__ import annotations

import copy
import gc
import operator
import pickle
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest
import torch
from torch import nn

from fxpress._graphs import engine as native_engine
from tests.support.engine import (
    assert_same,
    by_torch,
    engine,
    info,
    interpreter_module,
    nested,
    tower,
    unflattened,
)
from tests.support.interrupts import answer_time
from tests.support.memory import check_no_blocks_leak


def wide_graph(length: int, target: Any = torch.ops.aten.tanh.default) -> torch.fx.Graph:
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    for _ in range(length):
        node = graph.call_function(target, (node,))
    graph.output(node)
    return graph


# ---- lifetimes ----


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_have_no_plan(how: Any, ours: None) -> None:
    pickled = how is not copy.deepcopy  # overloads cannot be pickled
    functions = (nn.functional.linear, torch.relu, operator.mul) if pickled else ()
    module, x = nested(*functions)
    before = module(x)
    other = how(module)
    assert native_engine.plan_info(other.graph) is None
    assert_same(other(x), before)
    assert info(other) == info(module)
    assert info(other)["inlined"] == 1


def test_pickled_graph_does_not_need_fxpress(ours: None) -> None:
    graph = wide_graph(3)
    native_engine.run(nn.Module(), graph, (torch.randn(2),))
    data = pickle.dumps(vars(graph)["_fxpress_plan"])
    assert b"fxpress" not in data
    assert pickle.loads(data) is None


def test_modules_and_values_die(ours: None) -> None:
    module, x = nested()
    out = module(x)
    died = [weakref.ref(o) for o in (module, module.graph, module.inner, x, out)]
    del module, x, out
    gc.collect()
    assert [r() for r in died] == [None] * len(died)


def test_replaced_weights_die_at_once(ours: None) -> None:
    module, x = nested()
    module(x)
    old = weakref.ref(module.inner.weight)
    module.inner.weight = nn.Parameter(torch.randn(4, 4))
    assert old() is None
    module(x)


def test_reference_counts() -> None:
    _, module, x = tower()
    linear = getattr(module.blocks, "0").up
    bad = torch.randn(2, 7)
    module.check_input_constraints = False
    with engine():
        module(x)
        watched = [x, bad, module, linear, linear.weight, linear.bias, linear.graph, None]
        node = next(iter(linear.graph.nodes))
        watched += [node, node.args, torch.ops.aten.linear.default]
        gc.collect()
        before = [sys.getrefcount(o) for o in watched[:-4]]
        for _ in range(50):
            module(x)
            with pytest.raises(RuntimeError):
                module(bad)
        gc.collect()
        assert [sys.getrefcount(o) for o in watched[:-4]] == before


def runs_that_fail(module: Any, bad: torch.Tensor) -> None:
    with pytest.raises(RuntimeError):
        module(bad)


@pytest.mark.parametrize("fails", [False, True])
def test_resident_memory_does_not_grow(fails: bool, ours: None) -> None:
    _, module, x = tower()
    module.check_input_constraints = False
    bad = torch.randn(2, 7)
    process = psutil.Process()

    def rss(repeats: int) -> int:
        for _ in range(repeats):
            if fails:
                runs_that_fail(module, bad)
            else:
                module(x)
        gc.collect()
        return int(process.memory_info().rss)

    rss(200)
    first, second = rss(200), rss(1500)
    assert second - first < 4 * 2**20


def test_rebuilt_plans_do_not_leak(ours: None) -> None:
    graph = wide_graph(200)
    root, x = nn.Module(), torch.randn(2)
    node = list(graph.nodes)[100]

    def edit_and_run() -> None:
        node.args = (node.args[0],)
        native_engine.run(root, graph, (x,))

    check_no_blocks_leak(edit_and_run)


# ---- memory ----


def peak_bytes(call: Any) -> int:
    """Return the peak bytes of the allocator, minus the bytes before."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(profile_memory=True, activities=activities) as profiler:
        call()
    held = peak = 0
    for event in profiler.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


@pytest.mark.parametrize("grad", [False, True])
def test_peak_memory(grad: bool, ours: None) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(6)))
    x = torch.randn(256, 64)
    module = unflattened(model, x)
    with torch.set_grad_enabled(grad):
        module(x)
        model(x)
        eager, ours_peak = peak_bytes(lambda: model(x)), peak_bytes(lambda: module(x))
    assert eager > 0
    assert ours_peak <= 1.05 * eager


def test_values_are_freed_after_their_last_use() -> None:
    alive: list[int] = []
    seen: list[Any] = []

    def watch(x: torch.Tensor) -> torch.Tensor:
        alive.append(sum(r() is not None for r in seen))
        y = x + 1
        seen.append(weakref.ref(y))
        return y

    graph = wide_graph(10, watch)
    native_engine.run(nn.Module(), graph, (torch.randn(2),))
    assert max(alive) == 1


# ---- threads ----


def test_two_threads_one_module(ours: None) -> None:
    _, module, x = tower()
    inputs = [torch.randn(2, 8) for _ in range(4)]
    expected = [module(v) for v in inputs]
    barrier = threading.Barrier(4)

    def work(i: int) -> bool:
        barrier.wait(timeout=60)
        return all(torch.equal(module(inputs[i]), expected[i]) for _ in range(200))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4), timeout=120))


def test_threads_while_hooks_come_and_go(ours: None) -> None:
    _, module, x = tower()
    expected = module(x)
    linear = getattr(module.blocks, "1").up
    stop = threading.Event()

    def toggle() -> None:
        while not stop.is_set():
            handle = linear.register_forward_hook(lambda *a: None)
            time.sleep(0)
            handle.remove()

    thread = threading.Thread(target=toggle)
    thread.start()
    try:
        for _ in range(300):
            assert torch.equal(module(x), expected)
    finally:
        stop.set()
        thread.join()


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Scaled()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(self.inner(x, 2.0), 3.0) + self.inner(x, 5.0)


class Scaled(nn.Module):
    def forward(self, x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by


def dispatched() -> tuple[Any, torch.Tensor]:
    x = torch.randn(3)
    module = unflattened(Shared(), x, preserve=("inner",))
    assert hasattr(module.inner, "_call_modules")
    return module, x


def test_dispatched_calls(ours: None) -> None:
    module, x = dispatched()
    for _ in range(3):
        torch.testing.assert_close(module(x), x * 11)
        assert module.inner._num_calls == 0
    handle = module.inner.register_forward_hook(lambda *a: None)
    torch.testing.assert_close(module(x), x * 11)
    handle.remove()
    handle = module.inner._call_modules[1].register_forward_hook(lambda m, a, out: out * 2)
    torch.testing.assert_close(module(x), x * 17)
    handle.remove()
    module.inner._num_calls = 1  # as if a run had been left
    torch.testing.assert_close(module(x), x * 15 + x * 2)
    assert module.inner._num_calls == 1


def test_dispatchers_start_over_after_errors(ours: None) -> None:
    module, x = dispatched()
    module(x)
    fail = [True]

    def hook(*_: object) -> None:
        if fail[0]:
            raise ValueError

    module.inner._call_modules[1].register_forward_hook(hook)
    with pytest.raises(ValueError):
        module(x)
    assert module.inner._num_calls == 0
    fail[0] = False
    torch.testing.assert_close(module(x), x * 11)


def test_threads_count_dispatched_calls_on_their_own(ours: None) -> None:
    module, x = dispatched()
    module.register_forward_hook(lambda *a: time.sleep(0))
    expected = x * 11

    def work(_: int) -> bool:
        return all(torch.allclose(module(x), expected) for _ in range(300))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4), timeout=120))
    assert module.inner._num_calls == 0


def test_other_threads_run_meanwhile() -> None:
    graph = wide_graph(300)
    root, x = nn.Module(), torch.randn(200_000)
    native_engine.run(root, graph, (x,))
    ticks: list[float] = []
    stop = threading.Event()

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(10)  # no switch request releases the GIL: the engine must release it
    try:
        thread.start()
        start = time.perf_counter()
        native_engine.run(root, graph, (x,))
        end = time.perf_counter()
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        thread.join()
    during = [t for t in ticks if start < t < end]
    assert len(during) > 5


def test_a_run_does_not_wait_for_the_gil_again_and_again(ours: None) -> None:
    """If another thread keeps the GIL, each wait for it costs a switch interval."""
    _, module, x = tower(5)
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin)
    interval = sys.getswitchinterval()
    with torch.no_grad():
        values = tuple(module.process_forward_inputs(x))
        native_engine.run(module, module.graph, values)
        thread.start()
        sys.setswitchinterval(0.2)
        seconds = float("inf")
        try:
            for _ in range(5):
                start = time.perf_counter()
                native_engine.run(module, module.graph, values)
                seconds = min(seconds, time.perf_counter() - start)
        finally:
            sys.setswitchinterval(interval)
            stop.set()
            thread.join()
    assert len(list(module.parameters())) > 20
    assert seconds < 0.5


def test_interrupt() -> None:
    graph = wide_graph(3000)
    root, x = nn.Module(), torch.randn(400_000)
    native_engine.run(root, wide_graph(1), (x,))
    assert (
        answer_time(lambda: [native_engine.run(root, graph, (x,)) for _ in range(20)], 0.3) < 0.15
    )


def test_deep_modules() -> None:
    """Five hundred levels are one flat plan."""

    def level(inner: nn.Module | None) -> nn.Module:
        graph = torch.fx.Graph()
        node = graph.call_function(torch.ops.aten.neg.default, (graph.placeholder("x"),))
        if inner is not None:
            node = graph.call_module("inner", (node,))
        graph.output(node)
        return interpreter_module(graph, **({} if inner is None else {"inner": inner}))

    module = None
    for _ in range(500):
        module = level(module)
    assert module is not None
    x = torch.randn(2)
    with engine():
        assert_same(module(x), x)
        assert info(module)["inlined"] == 499


def test_a_plan_per_graph() -> None:
    _, module, x = tower()
    with engine():
        module(x)
        inner = getattr(module.blocks, "0")
        assert_same(inner(x), by_torch(inner, inner.graph, x))
        assert info(inner)["inlined"] > 0
        module(x)


def test_interrupt_between_functions_written_in_c() -> None:
    graph = wide_graph(6000, torch.tanh)
    root, x = nn.Module(), torch.randn(200_000)
    assert (
        answer_time(lambda: [native_engine.run(root, graph, (x,)) for _ in range(20)], 0.3) < 0.15
    )
