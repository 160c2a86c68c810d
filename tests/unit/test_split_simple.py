"""split_module_simple and its steps against torch, and where they are better on purpose."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.fx.passes.split_module as theirs
from torch.fx import Graph, GraphModule
from torch.fx._lazy_graph_module import _LazyGraphModule

import fxpress.split_module as ours
from tests.support.compare import assert_same_graph
from tests.support.graphs import chain
from tests.support.split_cases import clean
from tests.support.versions import needs_parity


def diamond() -> tuple[GraphModule, dict[Any, int]]:
    graph = Graph()
    x, y = graph.placeholder("x"), graph.placeholder("L_y_")
    a = graph.call_function(torch.relu, (x,))
    b = graph.call_function(torch.add, (a, y), {"alpha": 2})
    c = graph.call_method("neg", (a,))
    d = graph.call_function(torch.cat, ([b, c, x],))
    graph.output((d, {"b": b, "x": x}))
    return GraphModule({}, graph), {a: 0, b: 1, c: 1, d: 2}


def children(module: GraphModule) -> dict[str, GraphModule]:
    return dict(module.named_children())  # type: ignore[arg-type]


@needs_parity
@pytest.mark.parametrize("affix", [None, "pp"])
def test_same_as_torch(affix: str | None) -> None:
    module, ids = diamond()
    expected = theirs.split_module_simple(module, ids, partition_affix=affix)
    clean(module.graph)
    actual = ours.split_module_simple(module, ids, partition_affix=affix)
    assert {n._fx_partition for n in ids} == {0, 1, 2}
    assert_same_graph(actual.graph, expected.graph)
    assert list(children(actual)) == list(children(expected))
    for name, child in children(actual).items():
        assert_same_graph(child.graph, children(expected)[name].graph)
        assert type(child).__name__ == type(children(expected)[name]).__name__
        assert isinstance(child, _LazyGraphModule)
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(actual(x, y), module(x, y), rtol=0, atol=0)
    assert actual.code == expected.code
    assert actual.meta == expected.meta == {}


@needs_parity
def test_steps_as_torch() -> None:
    module, ids = diamond()
    tables = []
    for implementation in (theirs, ours):
        clean(module.graph)
        graphs, inputs, outputs, partitions = implementation._detect_dependencies(module, ids)
        clones = implementation._clone_nodes_into_partitions(
            module, graphs, inputs, outputs, partitions
        )
        tables.append(
            (
                list(graphs),
                {p: list(row.items()) for p, row in inputs.items() if row},
                {p: list(row.items()) for p, row in outputs.items() if row},
                partitions,
                {p: [(n, c.name) for n, c in row.items()] for p, row in clones.items()},
            )
        )
        result = implementation._build_stitching_graph(module, graphs, inputs, outputs, partitions)
        tables[-1] += (result.graph.python_code("self").src,)
    assert tables[0] == tables[1]


def test_f53_every_node_needs_a_partition() -> None:
    module, ids = diamond()
    missing = list(ids)[1]
    del ids[missing]
    with pytest.raises(KeyError):
        ours.split_module_simple(module, ids)
    assert not any(n.__dict__ for n in module.graph.nodes)


def test_f52_partitions_are_not_sorted() -> None:
    module, ids = diamond()
    a, b, c, d = ids
    with pytest.raises(KeyError, match="split_module"):
        ours.split_module_simple(module, {a: 0, b: 1, c: 1, d: 0})


@needs_parity
def test_f61_results_have_the_tables_of_a_graph_module() -> None:
    module = chain(4)
    nodes = module.graph.find_nodes(op="call_function", target=torch.neg)
    split = ours.split_module_simple(module, {n: i // 2 for i, n in enumerate(nodes)})
    created: list[str] = []
    with pytest.raises(AttributeError):
        theirs._make_lite_graph_module(chain(1).graph)._register_create_node_hook(print)
    split._register_create_node_hook(lambda n: created.append(n.name))
    with split.graph.inserting_before(split.graph.output_node()):
        split.graph.call_function(torch.relu, (split.graph.output_node().args[0],))
    assert created == ["relu"]


def test_f61_lite_module_adopts_its_children() -> None:
    child = ours._make_lite_graph_module(chain(1).graph)
    modules = {"submod_0": child}
    parent = ours._make_lite_graph_module(chain(1).graph, modules)
    assert parent._modules is modules
    x = torch.randn(2)
    assert torch.equal(parent(x), -x)
    for lite in (parent, child):
        assert isinstance(lite, _LazyGraphModule)
        assert type(lite).__qualname__.endswith("GraphModuleImpl")
        assert lite.graph.owning_module is lite
