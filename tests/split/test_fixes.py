"""Rows of the inventory where torch is wrong and we are right on purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.passes.split_module import split_module as torch_split

import fxpress
from fxpress.split_module import split_module
from tests.support.graphs import chain, mlp, region_graph
from tests.support.split_cases import assert_split_as_torch, clean
from tests.support.versions import needs_parity


def test_s21_regions_with_affix() -> None:
    """torch looks the partitions of a region up without the affix: KeyError."""
    module, ids = region_graph()
    with pytest.raises(KeyError):
        torch_split(module, None, ids.__getitem__, partition_affix="pp")
    clean(module.graph)
    plain = split_module(module, None, ids.__getitem__)
    affixed = split_module(module, None, ids.__getitem__, partition_affix="pp")
    assert affixed.meta["partition_names"] == {f"submod_pp_{i}" for i in ids.values()}
    for i in set(ids.values()):
        assert getattr(affixed, f"submod_pp_{i}").code == getattr(plain, f"submod_{i}").code
    x = torch.randn(3, 3)
    assert torch.equal(affixed(x)[0], module(x)[0])


def symbolic_sizes() -> tuple[Any, Any, torch.Tensor]:
    env = ShapeEnv()
    mode = FakeTensorMode(shape_env=env)
    tensor = mode.from_tensor(torch.randn(5, 3), static_shapes=False)
    return tensor.shape[0], tensor.shape[1], tensor


def test_s27_symbol_without_binder() -> None:
    """No node binds the symbols of x's shape: there is nothing to pass on."""
    _, _, tensor = symbolic_sizes()
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = tensor
    y = graph.call_function(torch.relu, (x,))
    y.meta["example_value"] = tensor
    z = graph.call_function(torch.neg, (y,))
    graph.output(z)
    module = GraphModule({}, graph)
    with pytest.raises(KeyError):
        torch_split(module, None, {y: 0, z: 1}.__getitem__)
    split = split_module(module, None, {y: 0, z: 1}.__getitem__)
    assert [n.name for n in split.submod_1.graph.find_nodes(op="placeholder")] == ["relu"]
    value = torch.randn(5, 3)
    assert torch.equal(split(value), module(value))


def test_s27_symbol_bound_in_the_using_partition() -> None:
    """A partition that binds the symbol itself does not wait for itself."""
    s0, _, tensor = symbolic_sizes()
    graph = Graph()
    x = graph.placeholder("x")
    first = graph.call_function(torch.relu, (x,))
    first.meta["example_value"] = tensor
    size = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
    size.meta["example_value"] = s0
    second = graph.call_function(torch.mul, (first, size))
    graph.output(second)
    module = GraphModule({}, graph)
    ids = {first: 0, size: 1, second: 1}
    with pytest.raises((RuntimeError, KeyError)):
        torch_split(module, None, ids.__getitem__)
    split = split_module(module, None, ids.__getitem__)
    value = torch.randn(5, 3)
    assert torch.equal(split(value), module(value))


def test_s36_colliding_names_after_flattening() -> None:
    """Modules "a.b" and "a_b" are two; in torch the second replaces the first."""

    class Collision(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Module()
            self.a.b = torch.nn.Linear(2, 2)
            self.a_b = torch.nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.a_b(self.a.b(x).relu())

    module = torch.fx.symbolic_trace(Collision())
    x = torch.randn(3, 2)
    assert not torch.equal(torch_split(module, None, lambda n: 0)(x), module(x))
    names: dict[str, str] = {}
    split = split_module(module, None, lambda n: 0, names)
    assert torch.equal(split(x), module(x))
    assert names == {"submod_0.a_b": "a.b", "submod_0.a_b_1": "a_b"}


def test_s44_attribute_used_only_by_the_output() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    w = graph.get_attr("w")
    y = graph.call_function(torch.relu, (x,))
    graph.output((y, w))
    root = torch.nn.Module()
    root.w = torch.nn.Parameter(torch.randn(2))
    module = GraphModule(root, graph)
    with pytest.raises(KeyError):
        torch_split(module, None, lambda n: 0, keep_original_order=True)
    split = split_module(module, None, lambda n: 0, keep_original_order=True)
    value = torch.randn(2)
    assert all(map(torch.equal, split(value), module(value)))


def test_s44_graph_module_used_by_a_call_and_the_output() -> None:
    """A graph module is copied to the partitions that use it, so none passes it on."""
    graph = Graph()
    x = graph.placeholder("x")
    body = graph.get_attr("body")
    call = graph.call_function(len, ((x, body),))
    graph.output((call, body))
    root = torch.nn.Module()
    root.body = GraphModule({}, Graph())
    module = GraphModule(root, graph)
    with pytest.raises(KeyError):
        torch_split(module, None, lambda n: 0, keep_original_order=True)
    split = split_module(module, None, lambda n: 0, keep_original_order=True)
    assert split(torch.randn(2))[0] == 2


def test_s54_marks_of_an_earlier_split_are_ignored() -> None:
    """A mark that split_module_simple left on an attribute does not confuse the next split."""
    module = mlp()
    for node in module.graph.nodes:
        if node.op in ("get_attr", "placeholder"):
            node._fx_partition = 7
    split = split_module(module, None, lambda n: 0)
    x = torch.randn(2, 4)
    assert all(map(torch.equal, split(x), module(x)))


def test_s20_symbol_that_is_bound_in_a_later_partition() -> None:
    """With switches of grad mode the partitions run in graph order: it is not there yet."""
    s0, _, tensor = symbolic_sizes()
    graph = Graph()
    x = graph.placeholder("x")
    x.meta["example_value"] = tensor
    first = graph.call_function(torch.relu, (x,))
    switch = graph.call_function(torch._C._set_grad_enabled, (True,))
    size = graph.call_function(torch.ops.aten.sym_size.int, (x, 0))
    size.meta["example_value"] = s0
    graph.output((first, size))
    module = GraphModule({}, graph)
    ids = {first: 0, switch: 1, size: 1}
    split = split_module(module, None, ids.__getitem__)
    assert [n.name for n in split.submod_0.graph.find_nodes(op="placeholder")] == ["x"]
    assert [n.target for n in split.graph.find_nodes(op="call_module")] == ["submod_0", "submod_1"]
    value = torch.randn(5, 3)
    assert torch.equal(split(value)[0], module(value)[0])


LONG = "9" * 25


@needs_parity
@pytest.mark.parametrize(
    "names",
    [
        [f"y_{LONG}"],
        [f"y_{LONG}", f"z_{LONG}", "y", f"y_{LONG}.1"],
        ["y_000000000000000000000007", "y_1234567890123456789", "y"],
        ["y_" + "\u0663" * 20],  # digits, to Python
    ],
)
def test_numbers_of_any_length_in_names(names: list[str]) -> None:
    """Placeholders that end in one, attributes, nodes and ids; one partition and several."""
    graph = Graph()
    value = graph.placeholder(names[0])
    for name in names:
        value = graph.create_node("call_function", torch.neg, (value,), name=name)
    graph.output(graph.call_function(torch.add, (value, value)))
    module = GraphModule({}, graph)
    nodes = [n for n in graph.nodes if n.op == "call_function"]
    for ids in (dict.fromkeys(nodes, 10**30), {n: 10**30 + i for i, n in enumerate(nodes)}):
        for keep in (False, True):
            split = assert_split_as_torch(module, ids.__getitem__, keep_original_node_name=keep)
            assert split is not None
            x = torch.randn(3)
            assert torch.equal(split(x), module(x))


def test_callback_is_asked_once_whatever_the_names() -> None:
    module = chain(2)
    first, second = module.graph.find_nodes(op="call_function", target=torch.neg)
    second._rename(f"y_{LONG}")
    asked: list[Node] = []
    with fxpress.installed(on_unsupported="torch"):
        torch.fx.passes.split_module.split_module(
            module, None, lambda n: asked.append(n) or 0, keep_original_node_name=True
        )
    assert asked == [first, second]


@needs_parity
@pytest.mark.parametrize("with_kwargs", [False, True])
def test_only_the_first_argument_of_the_output_is_returned(with_kwargs: bool) -> None:
    """The others are not outputs of their partitions."""
    module = chain(4)
    values = module.graph.find_nodes(op="call_function", target=torch.neg)
    output = module.graph.output_node()
    output.args = (values[-1], values[0])
    if with_kwargs:
        output.kwargs = {"more": values[1]}
    split = assert_split_as_torch(module, {n: i // 2 for i, n in enumerate(values)}.__getitem__)
    assert split is not None
    assert len(split.submod_0.graph.output_node().all_input_nodes) == 1
