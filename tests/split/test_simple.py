"""split_module_simple and its steps against torch, and where they are better on purpose."""

from __future__ import annotations

import contextlib
import operator
import types
from collections import OrderedDict
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


def test_s53_every_node_needs_a_partition() -> None:
    module, ids = diamond()
    missing = list(ids)[1]
    del ids[missing]
    with pytest.raises(KeyError):
        ours.split_module_simple(module, ids)
    assert not any(n.__dict__ for n in module.graph.nodes)


def test_s52_partitions_are_not_sorted() -> None:
    module, ids = diamond()
    a, b, c, d = ids
    with pytest.raises(KeyError, match="split_module"):
        ours.split_module_simple(module, {a: 0, b: 1, c: 1, d: 0})


@needs_parity
def test_s61_results_have_the_tables_of_a_graph_module() -> None:
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


@needs_parity
def test_s61_lite_module_adopts_its_children() -> None:
    child = ours._make_lite_graph_module(chain(1).graph)
    modules = {"submod_0": child}
    parent = ours._make_lite_graph_module(chain(1).graph, modules)
    assert parent._modules is modules
    x = torch.randn(2)
    assert torch.equal(parent(x), -x)
    torchs = theirs._make_lite_graph_module(chain(1).graph)
    for lite in (parent, child):
        assert lite.training is torchs.training is False
        assert isinstance(lite, _LazyGraphModule)
        assert type(lite).__qualname__.endswith("GraphModuleImpl")
        assert lite.graph.owning_module is lite


@needs_parity
@pytest.mark.parametrize("preserved", [False, True])
def test_nodes_that_unpack_inherit_meta_as_torchs(preserved: bool) -> None:
    """Under preserve_node_meta they are born with the meta of the node that is current."""
    metas = []
    for implementation in (theirs, ours):
        module, ids = diamond()
        with contextlib.ExitStack() as stack:
            if preserved:
                stack.enter_context(torch.fx.traceback.preserve_node_meta())
                current = module.graph.output_node()
                current.meta["stack_trace"] = "here"
                stack.enter_context(torch.fx.traceback.set_current_meta(current))
            split = implementation.split_module_simple(module, ids)
        getitems = split.graph.find_nodes(op="call_function", target=operator.getitem)
        metas.append([(n.name, sorted(n.meta)) for n in getitems])
        assert all(n.meta.get("stack_trace") == ("here" if preserved else None) for n in getitems)
    assert metas[0] == metas[1]
    assert metas[1]


@needs_parity
@pytest.mark.parametrize(
    "kind",
    [lambda ids: dict.fromkeys(ids).keys(), tuple, iter, lambda ids: (i for i in ids)],
    ids=["keys", "tuple", "iterator", "generator"],
)
def test_steps_take_any_iterable_of_partitions(kind: Any) -> None:
    results = []
    for implementation in (theirs, ours):
        module, ids = diamond()
        graphs, inputs, outputs, partitions = implementation._detect_dependencies(module, ids)
        implementation._clone_nodes_into_partitions(
            module, graphs, inputs, outputs, kind(partitions)
        )
        results.append(
            implementation._build_stitching_graph(
                module, graphs, inputs, outputs, kind(partitions)
            ).code
        )
    assert results[0] == results[1]


@needs_parity
def test_steps_take_any_mapping_of_names() -> None:
    """The order of the mapping counts, not that of the dict that it wraps."""
    results = []
    for implementation in (theirs, ours):
        module, ids = diamond()
        graphs, *tables, partitions = implementation._detect_dependencies(module, ids)
        tables = [{p: OrderedDict(rows[p]) for p in partitions} for rows in tables]
        tables[0][1].move_to_end(next(iter(tables[0][1])))
        rows = types.MappingProxyType(tables[0][0])
        tables[0][0] = rows
        implementation._clone_nodes_into_partitions(module, graphs, *tables, partitions)
        result = implementation._build_stitching_graph(module, graphs, *tables, partitions)
        results.append((result.code, [child.code for child in children(result).values()]))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("wrong", "error"),
    [(None, AttributeError), (7, AttributeError), ({"x": 7}, TypeError), ({7: None}, TypeError)],
)
def test_steps_refuse_what_is_no_table(wrong: Any, error: type[Exception]) -> None:
    module, ids = diamond()
    graphs, inputs, outputs, partitions = ours._detect_dependencies(module, ids)
    bad = {**{p: {} for p in partitions}, partitions[-1]: wrong}
    for tables in ((bad, outputs), (inputs, bad)):
        for step in (ours._clone_nodes_into_partitions, ours._build_stitching_graph):
            with pytest.raises(error):
                step(module, graphs, *tables, partitions)
            assert not any(len(graph.nodes) for graph in graphs.values())
    with pytest.raises(TypeError):
        ours._build_stitching_graph(module, graphs, inputs, outputs, 7)  # type: ignore[arg-type]


@pytest.mark.parametrize("by_steps", [False, True])
def test_s54_marks_of_an_earlier_split_are_ignored(by_steps: bool) -> None:
    """Earlier `_fx_partition` attributes may be from split_module, or be set on a placeholder."""
    module, ids = diamond()
    expected = ours.split_module_simple(module, ids)
    for node in module.graph.nodes:
        node._fx_partition = 1
    if by_steps:
        tables = ours._detect_dependencies(module, ids)
        ours._clone_nodes_into_partitions(module, *tables)
        split = ours._build_stitching_graph(module, *tables)
    else:
        split = ours.split_module_simple(module, ids)
    assert split.code == expected.code
    assert [c.code for c in children(split).values()] == [
        c.code for c in children(expected).values()
    ]
    x, y = torch.randn(3), torch.randn(3)
    torch.testing.assert_close(split(x, y), module(x, y), rtol=0, atol=0)
