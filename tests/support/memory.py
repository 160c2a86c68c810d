"""Measure the memory that calls leave allocated."""

from __future__ import annotations

import gc
import linecache
import sys
from collections.abc import Callable

import torch

from fxpress import _native


def collect_all() -> None:
    """Collect until nothing is freed: objects that C++ held may be freed one collection later."""
    while gc.collect():
        pass


def forget_sources() -> None:
    """Clear the sources that torch keeps for tracebacks, and collect garbage."""
    torch.fx.graph_module._loader.eval_cache.clear()
    linecache.clearcache()
    collect_all()


def live(kinds: tuple[type, ...]) -> int:
    forget_sources()
    return sum(isinstance(o, kinds) for o in gc.get_objects())


def check_no_object_leaks(case: Callable[[], None]) -> None:
    """Assert that further calls of a case do not leave further objects."""
    kinds = (torch.fx.Node, torch.fx.Graph, torch.nn.Module, torch.Tensor, tuple, dict, type)
    for _ in range(3):
        case()
    before = live(kinds)
    for _ in range(5):
        case()
    assert live(kinds) <= before + 5


def check_collector_is_as_it_was(case: Callable[[], None]) -> None:
    """Assert that a case leaves the garbage collector enabled or disabled, as it was before."""
    for enabled in (True, False):
        previous = gc.isenabled()
        try:
            (gc.enable if enabled else gc.disable)()
            case()
            assert gc.isenabled() is enabled
        finally:
            (gc.enable if previous else gc.disable)()
    assert _native.gc_pauses() == 0


def check_no_blocks_leak(
    call: Callable[[], object],
    calls: int = 50,
    *,
    kept: float = 0.9,  # about one block for each call; a cache may release some
    collect: Callable[[], object] = collect_all,
) -> None:
    """Fail if each of several rounds of calls leaves at least `kept` blocks of Python's memory for
    each call. An extra round first fills caches. Some caches also grow in later rounds, but a leak
    occurs in all rounds."""

    def left() -> float:
        collect()
        before = sys.getallocatedblocks()
        for _ in range(calls):
            call()
        collect()
        return (sys.getallocatedblocks() - before) / calls

    left()
    rounds = []
    for _ in range(4):
        rounds.append(left())
        if rounds[-1] < kept:
            return
    raise AssertionError(f"{min(rounds):g} blocks and more stay for each call: {rounds}")
