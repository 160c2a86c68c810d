"""The picture of a split."""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import graphviz
import pytest
import torch
from torch import fx, nn
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxpress.partition import around, by_module, draw
from fxpress.split_module import split_module
from tests.support.towers import (
    Block,
    Tower,
    elements_of,
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


def edge_between(*values: object) -> list[str]:
    """The text of the arrow for values of these examples."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    sent = [graph.call_function(torch.neg, (x,)) for _ in values]
    for node, value in zip(sent, values, strict=True):
        node.meta["val"] = value
    graph.output(graph.call_function(torch.cat, (sent,)))
    gm = fx.GraphModule(nn.Module(), graph)
    split = split_module(gm, None, lambda node: int(node.target is torch.cat))
    (edge,) = texts_of(draw(split, format="svg"), "edge")
    return edge


def test_draw_shows_symbolic_numbers_as_text() -> None:
    size = ShapeEnv().create_unbacked_symint()
    assert edge_between(size, torch.ones(2)) == ["2 values", "8 B", str(size)]


def test_draw_shortens_long_lists_of_symbolic_values() -> None:
    env = ShapeEnv()
    sizes = [env.create_unbacked_symint() for _ in range(8)]
    assert edge_between(*sizes) == ["8 values", *map(str, sizes[:6]), "2 more"]


def test_draw_adds_up_what_values_hold() -> None:
    held = {"a": [torch.ones(2), torch.ones(3)], "b": (torch.ones(4, dtype=torch.int8),)}
    assert edge_between(held) == ["1 value", "24 B"]
    assert edge_between(held, [None]) == ["2 values"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (999, "999 B"),
        (1024, "1.02 kB"),
        (1 << 20, "1.05 MB"),
        (3 << 29, "1.61 GB"),
        (5 << 50, "5.63 PB"),
    ],
)
def test_draw_units_of_bytes(count: int, text: str) -> None:
    assert edge_between(torch.empty(count, dtype=torch.int8, device="meta"))[1] == text


def test_draw_attributes_that_are_no_state() -> None:
    graph = fx.Graph()
    x, factor = graph.placeholder("x"), graph.get_attr("factor")
    graph.output(graph.call_function(torch.mul, (x, factor)))
    root = nn.Module()
    root.factor = 3
    split = split_module(fx.GraphModule(root, graph), None, lambda node: 0)
    (box,) = texts_of(draw(split, format="svg"), "node")
    assert box[1] == "1 node, 0 parameters (0 B)"


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


def split_in_three() -> fx.GraphModule:
    gm = fx.symbolic_trace(Block())
    return split_module(gm, None, around(gm, ["relu"]))


def make_dot(folder: Path, script: str) -> Path:
    path = folder / "dot"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def no_dot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")


def test_draw_without_dot(no_dot: None) -> None:
    split = split_in_three()
    boxes = texts_of(draw(split, format="svg"), "node")
    assert [box[0] for box in boxes] == partition_names(split)
    assert texts_of(draw(split, format="svg"), "edge") == [["1 value"], ["1 value"]]


@pytest.mark.skipif(shutil.which("dot") is None, reason="the system has no Graphviz")
def test_both_renderers_draw_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same boxes and arrows, between the same boxes, with the same texts, in the same order."""
    ep = exported_tower()
    gm = ep.graph_module
    other = fx.symbolic_trace(Block())
    splits = [
        split_module(gm, None, by_module(gm), keep_original_order=True),
        split_in_three(),
        split_module(other, None, around(other), partition_affix=r'<a href="x">\n & b:c über'),
    ]
    of_the_system = [draw(split, format="svg") for split in splits]
    monkeypatch.setenv("PATH", "")
    carried = [draw(split, format="svg") for split in splits]
    assert carried != of_the_system  # each names itself in a comment
    for ours, systems in zip(carried, of_the_system, strict=True):
        assert elements_of(ours) == elements_of(systems)


def test_the_systems_dot_is_used_where_it_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_dot(tmp_path, 'echo "<svg>$*</svg>"')
    monkeypatch.setenv("PATH", str(tmp_path))
    assert draw(split_in_three(), format="svg") == "<svg>-Kdot -Tsvg</svg>\n"


def test_a_renderer_that_fails_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    dot = make_dot(tmp_path, "echo no layout engine >&2; exit 3")
    monkeypatch.setenv("PATH", str(tmp_path))
    message = f"draw: {dot} ended with status 3: no layout engine"
    with pytest.raises(RuntimeError, match=re.escape(message)):
        draw(split_in_three(), format="svg")
    dot.write_text("#!/no/such/shell\n")
    with pytest.raises(RuntimeError, match=re.escape(f"the renderer {dot} can't be started")):
        draw(split_in_three(), format="svg")


def test_draw_without_renderer(no_dot: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def files(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "files", files)
    split = split_in_three()
    assert "submod_2" in draw(split).source
    with pytest.raises(RuntimeError, match=re.escape("pip install 'fxpress[draw]'")):
        draw(split, format="svg")


def test_notebooks_show_the_graph_without_dot(no_dot: None) -> None:
    split = split_in_three()
    graph = draw(split)
    assert isinstance(graph, graphviz.Digraph)
    assert graph._repr_mimebundle_() == {"image/svg+xml": draw(split, format="svg")}
    with pytest.raises(graphviz.ExecutableNotFound):
        graph.pipe(format="svg")


def test_notebooks_show_what_the_systems_dot_draws(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make_dot(tmp_path, 'echo "<svg>$*</svg>"')
    monkeypatch.setenv("PATH", str(tmp_path))
    shown = draw(split_in_three())._repr_mimebundle_()
    assert shown == {"image/svg+xml": "<svg>-Kdot -Tsvg</svg>\n"}


def test_draw_from_threads_and_after_a_fork(no_dot: None) -> None:
    split = split_in_three()
    svg = draw(split, format="svg")
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: draw(split, format="svg"), range(12)))
    assert drawn == [svg] * 12
    child = os.fork()
    if child == 0:
        os._exit(0 if draw(split, format="svg") == svg else 1)
    assert os.waitpid(child, 0)[1] == 0
