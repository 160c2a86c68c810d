"""Names, signatures and registries of the drop-in module."""

from __future__ import annotations

import inspect
import logging
import operator
import re

import pytest
import torch
import torch.fx.passes.split_module as theirs
from torch.fx import Graph, GraphModule

import fxpress.split_module as ours
from tests.support.graphs import chain, counter, mlp
from tests.support.versions import needs_parity

NAMES = [
    "Partition",
    "split_module",
    "split_module_simple",
    "_get_attr_from_qualname",
    "_decompose_size_nodes",
    "_make_lite_graph_module",
    "_detect_dependencies",
    "_clone_nodes_into_partitions",
    "_build_stitching_graph",
]


@needs_parity
@pytest.mark.parametrize("name", NAMES)
def test_signatures(name: str) -> None:
    mine, other = (inspect.signature(getattr(m, name)).parameters for m in (ours, theirs))
    assert [(p.name, p.kind, p.default) for p in mine.values()] == [
        (p.name, p.kind, p.default) for p in other.values()
    ]


@needs_parity
def test_all_and_loggers() -> None:
    assert ours.__all__ == theirs.__all__
    assert ours.log is ours._LOGGER


def test_partition_is_torchs() -> None:
    mine, other = ours.Partition("7"), theirs.Partition("7")
    assert repr(mine) == repr(other)
    assert list(vars(mine)) == list(vars(other))
    assert {k: v for k, v in vars(mine).items() if k != "graph"} == {
        k: v for k, v in vars(other).items() if k != "graph"
    }


def test_attribute_by_qualified_name() -> None:
    module = mlp()
    for name in ("lin.weight", "seq.0", "p"):
        assert ours._get_attr_from_qualname(module, name) is theirs._get_attr_from_qualname(
            module, name
        )
    with pytest.raises(AttributeError, match=r"Node target lin\.no not found!"):
        ours._get_attr_from_qualname(module, "lin.no")


def test_s2_debug_log(caplog: pytest.LogCaptureFixture) -> None:
    """The same messages as torch's, code before and after included."""
    texts = []
    for module in (theirs, ours):
        caplog.clear()
        with caplog.at_level(logging.DEBUG, logger=module.__name__):
            module.split_module(mlp(), None, counter(2))
        messages = [r.getMessage() for r in caplog.records if r.name == module.__name__]
        texts.append([re.sub(r"eval_with_key>\.\d+", "", message) for message in messages])
    assert texts[0] == texts[1]
    assert "pre split_module" in texts[1][0]
    assert "post split_module" in texts[1][-1]


def test_s58_call_module_keeps_its_target() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    call = graph.call_module("a.b", (x,))
    graph.output(call)
    root = torch.nn.Module()
    root.a = torch.nn.Module()
    root.a.b = torch.nn.ReLU()
    split = ours.split_module_simple(GraphModule(root, graph), {call: 0})
    assert split.submod_0.graph.find_nodes(op="call_module")[0].target == "a.b"
    assert not list(split.submod_0.children())


def test_new_nodes_of_a_traced_region_inherit_meta() -> None:
    """Nodes that unpack outputs are born as torch's tracer would make them."""
    metas = []
    for split_module in (theirs.split_module, ours.split_module):
        with (
            torch.fx.traceback.preserve_node_meta(),
            torch.fx.traceback.set_current_meta(chain(1).graph.output_node()),
        ):
            split = split_module(mlp(), None, counter(3))
        metas.append([(n.name, sorted(n.meta)) for n in split.graph.nodes])
    assert metas[0] == metas[1]


def test_s1_the_root_is_not_used() -> None:
    """Attributes come from the module that is split, whatever else is passed as the root."""
    module = mlp()
    expected = ours.split_module(module, None, counter(2))
    for root in (mlp(), torch.nn.Linear(1, 1), "nothing at all"):
        split = ours.split_module(module, root, counter(2))  # type: ignore[arg-type]
        assert split.code == expected.code
        assert all(map(operator.is_, split.parameters(), module.parameters()))
