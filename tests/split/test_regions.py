"""Autocast and grad-mode regions, and the number of calls of the callback."""

from __future__ import annotations

import pytest
import torch
from torch.fx import Node
from torch.fx.passes.split_module import split_module as torch_split

from fxpress.split_module import split_module
from tests.support.graphs import chain, counter, mlp, region_graph
from tests.support.split_cases import assert_split_as_torch, clean


def asked(split: object, module: torch.fx.GraphModule, ids: dict[Node, int]) -> list[str]:
    calls: list[str] = []

    def callback(node: Node) -> int:
        calls.append(node.name)
        return ids[node]

    clean(module.graph)
    split(module, None, callback)  # type: ignore[operator]
    return calls


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("grad", [False, True])
def test_callback_is_asked_as_often_as_by_torch(autocast: bool, grad: bool) -> None:
    module, ids = region_graph(autocast=autocast, grad=grad)
    assert asked(split_module, module, ids) == asked(torch_split, module, ids)


def test_callback_is_asked_once_without_regions() -> None:
    module = chain(5)
    nodes = module.graph.find_nodes(op="call_function", target=torch.neg)
    assert asked(split_module, module, dict.fromkeys(nodes, 0)) == [n.name for n in nodes]


def test_stateful_callback() -> None:
    module = mlp()
    theirs, ours = torch_split(module, None, counter(2)), split_module(module, None, counter(2))
    assert ours.code == theirs.code


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("order", [False, True])
def test_regions_as_torch(autocast: bool, grad: bool, order: bool) -> None:
    module, ids = region_graph(autocast=autocast, grad=grad)
    if grad and not order:  # S-20: torch's order lets the switches of one partition act on others
        split = split_module(module, None, ids.__getitem__)
        calls = [n.target for n in split.graph.find_nodes(op="call_module")]
        assert calls == [f"submod_{i}" for i in dict.fromkeys(ids.values())]
    else:
        split = assert_split_as_torch(module, ids.__getitem__, keep_original_order=order)
    assert split is not None
    x = torch.randn(3, 3, requires_grad=True)
    ours, expected = split(x)[0], module(x)[0]
    assert torch.equal(ours, expected)
    assert ours.dtype == expected.dtype
    assert ours.requires_grad == expected.requires_grad
    torch.set_grad_enabled(True)


def test_nested_autocast_regions() -> None:
    graph = torch.fx.Graph()
    value = graph.placeholder("x")
    outer = graph.call_function(torch.amp._enter_autocast, ("cpu", torch.bfloat16, True, True))
    value = graph.call_function(torch.matmul, (value, value))
    inner = graph.call_function(torch.amp._enter_autocast, ("cpu", None, False, None))
    value = graph.call_function(torch.exp, (value,))
    value = graph.call_function(torch.neg, (value,))
    graph.call_function(torch.amp._exit_autocast, (inner,))
    value = graph.call_function(torch.relu, (value,))
    graph.call_function(torch.amp._exit_autocast, (outer,))
    graph.output(value)
    module = torch.fx.GraphModule({}, graph)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    for size in (1, 2, 3):
        ids = {n: i // size for i, n in enumerate(nodes)}
        assert_split_as_torch(module, ids.__getitem__)
