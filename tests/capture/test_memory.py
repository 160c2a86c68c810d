"""References and leaks of capture, where it succeeds and where it fails."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import pytest
from torch.fx import Graph, GraphModule

from fxpress import _native
from fxpress._graphs.capture.transformer import rewrite_captured
from fxpress.functional_export import clean_nn_module_stack_and_source_fn
from tests.capture.test_rewrite import captured, native, plan
from tests.support.memory import check_no_blocks_leak

MADE = captured()


def rewrite() -> GraphModule:
    return rewrite_captured(MADE, *plan())


def rewrite_and_clean() -> None:
    clean_nn_module_stack_and_source_fn(rewrite(), True)


def fail_late() -> None:
    with pytest.raises(IndexError):
        native(MADE, outputs=[(0, 7)])


def fail_to_clean() -> None:
    graph = Graph()
    graph.placeholder("a").meta["nn_module_stack"] = {"a": ("b",)}
    with pytest.raises(ValueError, match="expected pairs"):
        _native.clean_stacks(graph, False)


@pytest.mark.parametrize("call", [rewrite, rewrite_and_clean, fail_late, fail_to_clean])
def test_nothing_is_left(call: Callable[[], object]) -> None:
    check_no_blocks_leak(call, 400)


def test_memory_does_not_grow() -> None:
    for _ in range(20):
        rewrite()
    before = psutil.Process().memory_info().rss
    for _ in range(300):
        rewrite()
    assert psutil.Process().memory_info().rss - before < 8 * 2**20
