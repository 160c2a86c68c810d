"""The picture of a split."""

from __future__ import annotations

import re
import sys

import pytest
import torch
from torch import fx

from fxpress.partition import around, by_module, draw
from fxpress.split_module import split_module
from tests.support.towers import (
    Block,
    Tower,
    exported,
    exported_tower,
    graph_of,
    partition_names,
    texts_of,
)

# ---- draw ---------------------------------------------------------------------------------------


def test_draw_tower() -> None:
    ep = exported_tower()
    gm = ep.graph_module
    split = split_module(gm, None, by_module(gm), keep_original_order=True)
    svg = draw(split, format="svg", signature=ep.graph_signature, state_dict=ep.state_dict)
    boxes = texts_of(svg, "node")
    assert [box[0] for box in boxes] == partition_names(split)
    # Both layers: 2 * (16 + 4 + 4) floats. The root's sub has no state. layers.0 again: its own.
    assert [box[1] for box in boxes] == [
        "1 node, 0 parameters (0 B)",
        "6 nodes, 48 parameters (192 B)",
        "1 node, 0 parameters (0 B)",
        "3 nodes, 24 parameters (96 B)",
        "1 node, 15 parameters (60 B)",
    ]
    assert boxes[0][2] == "in: x"
    # One tensor of 2 x 4 floats from each to the next.
    assert texts_of(svg, "edge") == [["1 value", "32 B"]] * 4
    assert svg == draw(split, format="svg", signature=ep.graph_signature)


def test_draw_counts_get_attr_state_and_module_state() -> None:
    gm = fx.symbolic_trace(Block())
    split = split_module(gm, None, around(gm, ["relu"]))
    boxes = texts_of(draw(split, format="svg"), "node")
    assert [box[1] for box in boxes] == [
        "1 node, 20 parameters (80 B)",  # linear
        "1 node, 0 parameters (0 B)",  # relu
        "1 node, 4 parameters (16 B)",  # + shift
    ]
    # A symbolic trace has no metadata: only counts.
    assert texts_of(draw(split, format="svg"), "edge") == [["1 value"], ["1 value"]]


def test_draw_several_values_of_one_partition() -> None:
    gm = exported(lambda x: (lambda a, b: a.relu() + b)(x.sin(), x.double()), torch.randn(2, 3))
    split = split_module(gm, None, around(gm, ["aten::relu"]), keep_original_order=True)
    edges = re.findall(r"p(\d) -> p(\d) \[label=\"([^\"]*)\"", draw(split).source)
    # sin, to | relu | add: 6 floats to relu; 6 doubles and 6 floats to add.
    assert set(edges) == {
        ("0", "1", "1 value\n24 B"),
        ("0", "2", "1 value\n48 B"),
        ("1", "2", "1 value\n24 B"),
    }
    one = split_module(gm, None, lambda node: int(node.target is torch.ops.aten.add.Tensor))
    (edge,) = texts_of(draw(one, format="svg"), "edge")
    assert edge == ["2 values", "72 B"]


def test_draw_shows_symbolic_shapes_as_text() -> None:
    batch = torch.export.Dim("batch", min=2, max=64)
    ep = torch.export.export(
        Tower(), (torch.randn(3, 4),), dynamic_shapes=({0: batch},), strict=False
    )
    gm = ep.graph_module
    split = split_module(gm, None, by_module(gm))
    symbol = str(gm.graph.find_nodes(op="placeholder")[-1].meta["val"].shape[0])
    svg = draw(split, format="svg")
    assert texts_of(svg, "edge") == [["1 value", f"float32 [{symbol}, 4]"]] * 4


def test_draw_shortens_long_lists_of_names() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        with graph.inserting_before(x):
            others = [graph.placeholder(f"other_{index}") for index in range(9)]
        return graph.call_function(torch.cat, ([*others, x],))

    gm = graph_of(build)
    (box,) = texts_of(draw(split_module(gm, None, around(gm)), format="svg"), "node")
    assert box[2] == "in: " + ", ".join(f"other_{index}" for index in range(6)) + ", 4 more"


def test_draw_escapes_labels() -> None:
    gm = fx.symbolic_trace(Block())
    split = split_module(gm, None, around(gm), partition_affix=r'<a href="x">\n & b:c')
    (box,) = texts_of(draw(split, format="svg"), "node")
    assert box[0] == r'submod_<a href="x">\n & b:c_0'


def test_draw_refuses_other_things() -> None:
    gm = fx.symbolic_trace(Block())
    with pytest.raises(TypeError, match="Block"):
        draw(Block())  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="png"):
        draw(gm, format="png")  # type: ignore[call-overload]


def test_draw_without_graphviz(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "graphviz", None)
    with pytest.raises(ImportError, match=re.escape("pip install 'fxpress[draw]'")):
        draw(fx.symbolic_trace(Block()))


def test_draw_without_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = fx.symbolic_trace(Block())
    split = split_module(gm, None, around(gm, ["relu"]))
    monkeypatch.setenv("PATH", "")
    assert "submod_2" in draw(split).source
    with pytest.raises(RuntimeError, match="install the package graphviz"):
        draw(split, format="svg")
