"""Threads get the results that one thread gets."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch.fx import GraphModule

from fxpress import _native
from fxpress.split_module import split_module
from tests.support.compare import assert_same_module
from tests.support.graphs import chain, mlp

THREADS = 8


def together(work: Callable[[int], object]) -> list[object]:
    """Runs work(i) in all threads at once."""
    barrier = threading.Barrier(THREADS)

    def start(i: int) -> object:
        barrier.wait(timeout=60)
        return work(i)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(start, range(THREADS), timeout=120))


def blocks(module: GraphModule, size: int) -> dict[torch.fx.Node, int]:
    nodes = [n for n in module.graph.nodes if n.op.startswith("call")]
    return {n: i // size for i, n in enumerate(nodes)}


def test_each_thread_splits_its_own_module() -> None:
    modules = [mlp() if i % 2 else chain(300) for i in range(THREADS)]
    ids = [blocks(m, 3) for m in modules]
    expected = [split_module(m, None, i.__getitem__) for m, i in zip(modules, ids, strict=True)]
    results = together(lambda i: split_module(modules[i], None, ids[i].__getitem__))
    for ours, theirs in zip(results, expected, strict=True):
        assert isinstance(ours, GraphModule)
        assert_same_module(ours, theirs)
    assert gc.isenabled()
    assert _native.gc_pauses() == 0


def test_all_threads_split_one_module() -> None:
    module = chain(500)
    ids = blocks(module, 7)
    expected = split_module(module, None, ids.__getitem__)
    for ours in together(lambda i: split_module(module, None, ids.__getitem__)):
        assert isinstance(ours, GraphModule)
        assert_same_module(ours, expected)


def test_first_call_by_all_threads_at_once() -> None:
    module = mlp()
    split = split_module(module, None, blocks(module, 2).__getitem__)
    x = torch.randn(2, 4)
    expected = module(x)
    for result in together(lambda i: split(x)):
        assert all(map(torch.equal, result, expected))  # type: ignore[call-overload]


def test_collector_is_restored_when_threads_fail() -> None:
    def work(i: int) -> object:
        try:
            return split_module(chain(50), None, lambda n: 1 / (n.name != "neg_40" or i % 2))
        except ZeroDivisionError:
            return None

    assert sum(r is None for r in together(work)) == THREADS // 2
    assert gc.isenabled()
    assert _native.gc_pauses() == 0
