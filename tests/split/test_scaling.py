"""Time grows with the number of nodes, not with its square; depth costs no stack."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

import pytest
import torch
from torch.fx import Graph, GraphModule, Node

from fxpress.split_module import split_module
from tests.support.graphs import chain
from tests.support.interrupts import answer_time

pytestmark = pytest.mark.slow("large programs and states")


def fan(length: int) -> GraphModule:
    """Every partition uses the first value, and the last uses all of them."""
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.neg, (x,))
    values = [graph.call_function(torch.add, (first, first)) for _ in range(length)]
    graph.output(graph.call_function(torch.cat, (values,)))
    return GraphModule({}, graph)


def seconds(module: GraphModule, size: int) -> float:
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    ids = {n: i // size for i, n in enumerate(nodes)}
    best = float("inf")
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        split_module(module, None, ids.__getitem__)
        best = min(best, time.process_time() - start)
    return best


@pytest.mark.parametrize("build", [chain, fan])
@pytest.mark.parametrize("size", [1, 37])
def test_near_linear(build: Callable[[int], GraphModule], size: int) -> None:
    small, large = seconds(build(1_000), size), seconds(build(8_000), size)
    assert large / small < 8 * 3


def test_deeply_nested_arguments() -> None:
    """Explicit stacks: as deep as torch itself can build a node."""
    graph = Graph()
    x = graph.placeholder("x")
    nested: object = x
    for _ in range(2_000):
        nested = [nested]
    node = graph.call_function(torch.cat, (x,))
    node.args = (nested,)
    graph.output(node)
    module = torch.nn.Module()
    module.graph = graph
    split = split_module(module, None, lambda n: 0)
    copy = split.submod_0.graph.find_nodes(op="call_function", target=torch.cat)[0]
    depth, inner = 0, copy.args[0]
    while not isinstance(inner, Node):
        depth, inner = depth + 1, inner[0]
    assert depth == 2_000
    assert inner.op == "placeholder"


# The interrupt may come while a callback of torch's or Hypothesis' runs, which cannot raise it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupt_while_native_loops_run() -> None:
    """Ctrl-C is answered long before the split of a large graph would end."""
    module = chain(100_000)
    nodes = [n for n in module.graph.nodes if n.op == "call_function"]
    ids = {n: i // 37 for i, n in enumerate(nodes)}

    def split() -> None:
        for _ in range(20):
            split_module(module, None, ids.__getitem__)

    # The bound is 0.1 s on an idle machine; the whole call takes more than five.
    assert answer_time(split, 0.05, time.process_time) < 0.5
    assert gc.isenabled()
