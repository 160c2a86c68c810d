"""Reference counts, leaks and the garbage collector."""

from __future__ import annotations

import functools
import gc
import linecache
import sys
import weakref
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from torch.fx import GraphModule, Node

from fxpress import _native
from fxpress.split_module import split_module, split_module_simple
from tests.support.graphs import chain, counter, mlp, region_graph
from tests.support.memory import check_no_blocks_leak


def succeed() -> None:
    split = split_module(mlp(), None, counter(2), {})
    split(torch.randn(2, 4))


def succeed_with_regions() -> None:
    module, ids = region_graph()
    split_module(module, None, ids.__getitem__, tuple_return=True).code


def succeed_simply() -> None:
    module = chain(6)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    split_module_simple(module, {n: i // 2 for i, n in enumerate(nodes)})(torch.randn(2))


prepared = functools.cache(chain)  # torch keeps the source of every GraphModule that it makes


def fail_in_callback() -> None:
    def callback(node: Node) -> int:
        if node.name == "neg_3":
            raise ValueError
        return 0

    with pytest.raises(ValueError):
        split_module(prepared(6), None, callback)


def fail_with_a_cycle() -> None:
    ids = iter([0, 1, 0, 1])
    with pytest.raises(RuntimeError):
        split_module(prepared(4), None, lambda n: next(ids))


def fail_while_writing() -> None:
    class Meta(dict):  # type: ignore[type-arg]
        def copy(self) -> Any:
            raise ValueError

    module = prepared(7)
    list(module.graph.nodes)[4].meta = Meta()
    with pytest.raises(ValueError):
        split_module(module, None, counter(2))


CASES = [
    succeed,
    succeed_with_regions,
    succeed_simply,
    fail_in_callback,
    fail_with_a_cycle,
    fail_while_writing,
]


def live(kinds: tuple[type, ...]) -> int:
    gc.collect()
    return sum(isinstance(o, kinds) for o in gc.get_objects())


@pytest.mark.parametrize("case", CASES)
def test_no_object_leaks(case: Callable[[], None]) -> None:
    kinds = (Node, torch.fx.Graph, torch.nn.Module, tuple, type)
    for _ in range(3):
        case()
    torch._dynamo.reset()
    before = live(kinds)
    for _ in range(5):
        case()
    linecache.clearcache()  # torch leaves an entry there for each generated function
    assert live(kinds) <= before


@pytest.mark.parametrize("case", CASES)
def test_no_block_leaks(case: Callable[[], None]) -> None:
    """Memory blocks of the interpreter do not grow with the number of calls."""

    # what torch keeps of each generated source: a cache entry and a line cache entry
    check_no_blocks_leak(case, 40, kept=60 if case.__name__.startswith("succeed") else 2)


def test_the_split_does_not_keep_the_source_alive() -> None:
    module = chain(6)
    graph = weakref.ref(module.graph)
    split = split_module(module, None, counter(2))
    del module
    gc.collect()
    assert graph() is None
    split(torch.randn(2))


def test_modules_die_before_and_after_their_code_was_generated() -> None:
    for use in (False, True):
        split = split_module(chain(6), None, counter(2))
        if use:
            split(torch.randn(2))
        died = [weakref.ref(split), weakref.ref(split.submod_0), weakref.ref(type(split))]
        del split
        gc.collect()
        assert [r() for r in died] == [None, None, None]


def test_reference_counts_of_shared_objects() -> None:
    module = chain(50)
    target = torch.neg
    marker = object()
    for node in module.graph.nodes:
        node.meta["marker"] = marker
    before = [sys.getrefcount(o) for o in (target, marker)]
    for _ in range(20):
        split_module(module, None, lambda n: 0)
    gc.collect()
    after = [sys.getrefcount(o) for o in (target, marker)]
    assert after == before


@pytest.mark.parametrize("enabled", [True, False])
def test_collector_is_as_it_was(enabled: bool) -> None:
    seen: list[bool] = []

    def callback(node: Node) -> int:
        seen.append(gc.isenabled())
        return 0

    previous = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        split_module(chain(3), None, callback)
        assert gc.isenabled() is enabled
        for case in (fail_in_callback, fail_with_a_cycle, fail_while_writing):
            case()
            assert gc.isenabled() is enabled
    finally:
        (gc.enable if previous else gc.disable)()
    assert seen == [enabled] * 3
    assert _native.gc_pauses() == 0


def test_collector_stands_still_while_graphs_are_built() -> None:
    """No collection starts between the first node and the last, however many are made."""
    module = chain(20_000)
    collections: list[int] = []

    def note(phase: str, info: dict[str, int]) -> None:
        collections.append(_native.gc_pauses())

    gc.callbacks.append(note)
    try:
        split_module(module, None, counter(50))
    finally:
        gc.callbacks.remove(note)
    assert all(pauses == 0 for pauses in collections)


def test_resident_memory_does_not_grow() -> None:
    module: GraphModule = chain(2_000)
    process = psutil.Process()

    def rss(repeats: int) -> int:
        for _ in range(repeats):
            split_module(module, None, counter(37))
            gc.collect()
        return int(process.memory_info().rss)

    rss(5)
    first, second = rss(5), rss(15)
    assert second - first < 8 * 2**20


def test_collector_runs_while_code_of_children_is_generated() -> None:
    """torch and other recompilations generate the code of a nested GraphModule again."""
    seen: list[tuple[int, bool]] = []

    class Watching(torch.fx.graph.CodeGen):
        def _gen_python_code(self, *args: Any, **kwargs: Any) -> Any:
            seen.append((_native.gc_pauses(), gc.isenabled()))
            return super()._gen_python_code(*args, **kwargs)

    inner = chain(2)
    inner.graph.set_codegen(Watching())
    inner.recompile()
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    graph.output(graph.call_module("inner", (x,)))
    module = GraphModule(torch.nn.ModuleDict({"inner": inner}), graph)
    seen.clear()
    split = split_module(module, None, lambda n: 0)
    assert seen == [(0, True)]
    assert torch.equal(split(torch.ones(1)), torch.ones(1))


def fail_while_generating() -> None:
    class Failing(torch.fx.graph.CodeGen):
        def _gen_python_code(self, *args: Any, **kwargs: Any) -> Any:
            raise ValueError

    module = chain(2)
    module.add_module("inner", chain(2))
    with module.graph.inserting_before(module.graph.output_node()):
        module.graph.call_module("inner", (1,))
    module.inner.graph.set_codegen(Failing())
    with pytest.raises(ValueError):
        split_module(module, None, lambda n: 0)
    assert not any(node.__dict__ for node in module.graph.nodes)


def test_no_mark_stays_when_code_of_children_fails() -> None:
    fail_while_generating()
    assert _native.gc_pauses() == 0
