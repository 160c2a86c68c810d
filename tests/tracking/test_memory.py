"""Memory after tracking modules, in success and failure, and the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import psutil
import pytest
import torch
from torch import nn

import fxpress
from fxpress import _native, functional_export
from fxpress._graphs.tracking.reuse.journal import Journal
from fxpress._graphs.tracking.reuse.recording import Recording
from fxpress.functional_export import reuse_report
from tests.support.memory import check_no_blocks_leak

MODULE = nn.Linear(2, 2)
HOOKS = ("_forward_hooks", "_backward_hooks")


def look_up() -> None:
    assert _native.class_attribute(nn.Linear, "forward", None) is nn.Linear.forward
    assert _native.class_attribute(nn.Linear, "nothing", None) is None
    assert _native.has_empty_tables(MODULE, HOOKS)
    assert _native.has_plain_tables(MODULE.__dict__, ("_buffers",))
    assert _native.path_without_tables("L['m']._modules['\udc80'].x") == "L['m'].\udc80.x"


def fail() -> None:
    failing: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
        (_native.class_attribute, (3, "x", None)),
        (_native.class_attribute, (nn.Linear, 3, None)),
        (_native.has_empty_tables, (MODULE, (3,))),
        (_native.has_empty_tables, (3, HOOKS)),
        (_native.has_plain_tables, (3, HOOKS)),
        (_native.path_without_tables, (3,)),
    ]
    for function, arguments in failing:
        with pytest.raises((TypeError, AttributeError)):
            function(*arguments)


@pytest.mark.parametrize("call", [look_up, fail])
def test_nothing_is_left(call: Callable[[], object]) -> None:
    check_no_blocks_leak(call, 500)


def test_memory_of_compilations_does_not_grow() -> None:
    made = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2))
    x = torch.ones(1, 2)

    def compile_() -> None:
        torch._dynamo.reset()
        torch.compile(made, backend="eager")(x)

    with fxpress.installed():
        for _ in range(25):  # torch's own tables grow at first
            compile_()
        gc.collect()
        before = psutil.Process().memory_info().rss
        for _ in range(20):
            compile_()
        gc.collect()
        assert psutil.Process().memory_info().rss - before < 8 * 2**20


def layers_that_are_instantiated() -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(4)))


def layers_that_are_recorded_in_vain() -> nn.Module:
    norms = [nn.LayerNorm(2, eps=eps / 100) for eps in range(1, 8)]
    return nn.Sequential(*norms, layers_that_are_instantiated())


@pytest.mark.parametrize("make", [layers_that_are_instantiated, layers_that_are_recorded_in_vain])
def test_what_is_recorded_ends_with_the_trace(make: Callable[[], nn.Module]) -> None:
    """No collection of garbage is needed."""
    made = make()

    def recorded() -> list[Any]:
        return [each for each in gc.get_objects() if type(each) in (Journal, Recording)]

    torch._dynamo.reset()
    gc.collect()
    gc.disable()
    try:
        with fxpress.installed():
            captured = functional_export.dynamo_graph_capture_for_export(made)(torch.ones(1, 2))
        assert reuse_report().instantiated
        assert not recorded()
    finally:
        gc.enable()
    assert captured is not None


def test_thresholds_come_back() -> None:
    before = gc.get_threshold()
    first, second = _native.RareCollections(), _native.RareCollections()
    first.__enter__()
    assert gc.get_threshold()[0] > before[0]
    second.__enter__()
    first.__exit__(None, None, None)
    assert gc.get_threshold()[0] > before[0]
    second.__exit__(None, None, None)
    assert gc.get_threshold() == before
    with pytest.raises(ZeroDivisionError), _native.RareCollections():
        raise ZeroDivisionError
    assert gc.get_threshold() == before


@pytest.mark.parametrize("threshold", [0, 10**6])
def test_thresholds_that_are_rarer_stay(threshold: int) -> None:
    before = gc.get_threshold()
    try:
        gc.set_threshold(threshold, 7, 8)
        with _native.RareCollections():
            assert gc.get_threshold() == (threshold, 7, 8)
        assert gc.get_threshold() == (threshold, 7, 8)
        gc.set_threshold(*before)
        with _native.RareCollections():
            gc.set_threshold(threshold, 7, 8)  # by somebody else
        assert gc.get_threshold() == (threshold, 7, 8)
    finally:
        gc.set_threshold(*before)
