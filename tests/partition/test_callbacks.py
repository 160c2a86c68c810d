"""The ready-made split callbacks."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

from fxpress.partition import around, balanced, by_module, draw
from fxpress.split_module import split_module, split_module_simple
from tests.support.towers import (
    TOWER_DEPTH_1,
    TOWER_DEPTH_2,
    Block,
    Tower,
    dynamo_graph,
    exported,
    exported_tower,
    graph_of,
    ids_of,
)

# ---- the callback -------------------------------------------------------------------------------


def test_callback_is_its_dictionary() -> None:
    gm = fx.symbolic_trace(Tower())
    callback = balanced(gm, 3, by="nodes")
    operations = [n for n in gm.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
    assert list(callback.ids) == operations
    assert [callback(node) for node in operations] == list(callback.ids.values())
    assert callback.count == 3
    assert repr(callback) == ("<SplitCallback balanced(n=3, by='nodes'): 12 nodes in 3 partitions>")


def test_unknown_node_is_named() -> None:
    callback = balanced(fx.symbolic_trace(Tower()), 2)
    other = next(iter(fx.symbolic_trace(Tower()).graph.find_nodes(op="call_module")))
    with pytest.raises(KeyError, match="layers_0_linear"):
        callback(other)


def test_callback_serves_split_module_simple() -> None:
    gm = graph_of(lambda g, x: g.call_method("cos", (g.call_method("sin", (x,)),)))
    x = torch.randn(3)
    split = split_module_simple(gm, balanced(gm, 2, by="nodes"))
    assert torch.equal(split(x), x.sin().cos())


def test_graph_without_operations() -> None:
    gm = graph_of(lambda _, x: x)
    for callback in (by_module(gm), around(gm, ["relu"])):
        assert (len(callback), callback.count) == (0, 0)
        assert draw(split_module(gm, None, callback), format="svg").count('class="node"') == 0


# ---- by_module ----------------------------------------------------------------------------------


def without_stacks() -> fx.GraphModule:
    gm = fx.symbolic_trace(Tower())
    for node in gm.graph.nodes:
        node.meta.pop("nn_module_stack", None)
    return gm


GRAPHS: dict[str, Callable[[], fx.GraphModule]] = {
    "exported": lambda: exported_tower().graph_module,
    "exported_strictly": lambda: exported_tower(strict=True).graph_module,
    "symbolic_trace": lambda: fx.symbolic_trace(Tower()),
    "dynamo": lambda: dynamo_graph(Tower().eval(), torch.randn(2, 4)),
    "without_stacks": without_stacks,
}
# Neither records a stack for the root's own nodes: they stay with the node before, and the first
# with the first node that has a module. So layers.0 and the sub before it, a node of layers.1:
# mul, layers.0 | layers.1, sub | layers.0 | head
ROOT_UNRECORDED = [0, *[0] * 3, *[1] * 3, 1, *[2] * 3, 3]


@pytest.mark.parametrize(
    ("graph", "options", "expected"),
    [
        ("exported", {"depth": 1}, TOWER_DEPTH_1),
        ("exported", {"depth": 2}, TOWER_DEPTH_2),
        ("exported_strictly", {"depth": 1}, TOWER_DEPTH_1),
        ("exported_strictly", {"depth": 2}, TOWER_DEPTH_2),
        # mul | linear | relu, add | linear | relu, add | sub | linear | relu, add | head
        ("exported", {"depth": 3}, [0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 8]),
        ("exported", {"path": "layers.1"}, [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]),
        ("exported", {"path": "layers"}, [0, *[1] * 6, 2, *[3] * 3, 4]),
        ("exported", {"path": "layers.*"}, [0, *[1] * 3, *[2] * 3, 3, *[4] * 3, 5]),
        ("exported", {"path": "*.linear"}, [0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 6, 6]),
        ("exported", {"path": "layer"}, [0] * 12),  # a prefix of path components, not of letters
        ("exported", {"depth": 2, "path": "layers"}, TOWER_DEPTH_2),
        ("symbolic_trace", {"depth": 2}, ROOT_UNRECORDED),
        ("dynamo", {"depth": 2}, ROOT_UNRECORDED),
        # Only the four linear layers have a target; what follows each of them stays with it.
        ("without_stacks", {"depth": 2}, ROOT_UNRECORDED),
    ],
)
def test_by_module(graph: str, options: dict[str, Any], expected: list[int]) -> None:
    assert ids_of(by_module(GRAPHS[graph](), **options)) == expected


@pytest.mark.parametrize(
    "path",
    [
        "model.layers.0",
        "model.layers.0@1",
        "model.layers@2.0@1",
        "L['self'].model.layers.0",
        "L['self'].model.layers[0]",
        "L['fn']._modules['model']._modules['layers']._modules['0']",
        'G["model"].model.layers["0"]',
        "_export_root.model.layers.0",
    ],
)
def test_by_module_knows_every_spelling(path: str) -> None:
    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        for spelling in ("model.layers.0", path, "model.layers.1"):
            x = graph.call_method("relu", (x,))
            x.meta["nn_module_stack"] = {"key": (spelling, nn.ReLU)}
        return x

    assert ids_of(by_module(graph_of(build), depth=3)) == [0, 0, 1]
    assert ids_of(by_module(graph_of(build), path="model.layers.*")) == [0, 0, 1]


def test_by_module_follows_the_call_not_the_owner() -> None:
    """A module that lives elsewhere belongs to the module that calls it, if that is deep enough."""

    def build(graph: fx.Graph, x: fx.Node) -> fx.Node:
        layer, rotary = ("model.layers.0", nn.Module), ("model.rotary", nn.Module)
        for stack in ({"a": layer}, {"a": layer, "b": rotary}, {"a": layer}, {"b": rotary}):
            x = graph.call_method("relu", (x,))
            x.meta["nn_module_stack"] = {"": ("", nn.Module), **stack}
        return x

    assert ids_of(by_module(graph_of(build), depth=3)) == [0, 0, 0, 1]


# ---- balanced -----------------------------------------------------------------------------------


class Uneven(nn.Module):
    """Linear layers without bias of 4, 4, 16 and 64 elements, the last used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 2, bias=False)
        self.c = nn.Linear(2, 8, bias=False)
        self.d = nn.Linear(8, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.d(self.d(self.c(self.b(self.a(x)))))


def test_balanced_counts_a_module_at_its_first_call() -> None:
    # a 4, b 4, c 16, d 64, d again 0: the best two stages are 24 and 64.
    assert ids_of(balanced(fx.symbolic_trace(Uneven()), 2)) == [0, 0, 0, 1, 1]
    # Three cannot be lighter than 64 either. The first takes 24, closest to a third of 88, and the
    # second the 64, so that the third has only the second call.
    assert ids_of(balanced(fx.symbolic_trace(Uneven()), 3)) == [0, 0, 0, 1, 2]


def test_balanced_by_bytes_or_elements() -> None:
    root = nn.Module()
    root.register_buffer("wide", torch.zeros(4, dtype=torch.float64))  # 4 elements, 32 bytes
    root.register_buffer("narrow", torch.zeros(12, dtype=torch.int8))  # 12 elements, 12 bytes
    root.register_buffer("middle", torch.zeros(10, dtype=torch.float16))  # 10 elements, 20 bytes
    graph = fx.Graph()
    value = graph.placeholder("x")
    for name in ("wide", "narrow", "middle"):
        value = graph.call_function(operator.add, (value, graph.get_attr(name)))
    graph.output(value)
    gm = fx.GraphModule(root, graph)
    assert ids_of(balanced(gm, 2)) == [0, 0, 1]  # 16 + 10 is less than 4 + 22
    assert ids_of(balanced(gm, 2, by="bytes")) == [0, 1, 1]  # 32 + 32 is less than 44 + 20


def test_balanced_counts_tied_state_once() -> None:
    """Under two names, as a get_attr and as a module, read early and used late."""
    root = nn.Module()
    root.linear = nn.Linear(4, 4, bias=False)
    root.tied = root.linear.weight
    root.small = nn.Parameter(torch.zeros(1))
    graph = fx.Graph()
    x = graph.placeholder("x")
    tied = graph.get_attr("tied")
    small = graph.get_attr("small")
    first = graph.call_function(operator.add, (x, small))
    second = graph.call_module("linear", (first,))
    third = graph.call_function(operator.add, (second, tied))
    graph.output(third)
    gm = fx.GraphModule(root, graph)
    # 1, 16, 0: counted at the get_attr or twice, the cut would lie elsewhere.
    assert ids_of(balanced(gm, 2)) == [0, 1, 1]


def test_balanced_spreads_equal_layers() -> None:
    """Four equal layers in three stages: no stage without a layer, though two may share one."""
    gm = fx.symbolic_trace(nn.Sequential(*[Block() for _ in range(4)]))
    callback = balanced(gm, 3)
    layers = [callback(node) for node in gm.graph.find_nodes(op="call_module")]
    assert set(layers) == {0, 1, 2}
    assert max(layers.count(stage) for stage in range(3)) == 2


def test_balanced_reads_lifted_state() -> None:
    ep = exported_tower()
    gm = ep.graph_module
    # layers.0 and layers.1: 16 + 4 for linear, 4 for add; layers.0 again: 0; head: 12 + 3.
    expected = [*[0] * 4, *[1] * 8]  # 24 | 39 is the best; 4 of the add could not stay behind
    signed = balanced(gm, 2, signature=ep.graph_signature, state_dict=ep.state_dict)
    assert ids_of(signed) == expected
    assert ids_of(balanced(gm, 2, signature=ep.graph_signature)) == expected
    names = [*ep.graph_signature.inputs_to_parameters, *ep.graph_signature.inputs_to_buffers]
    assert ids_of(balanced(gm, 2, state_inputs=names)) == expected


def test_balanced_sees_ties_through_the_state_dict() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = (nn.Linear(4, 4, bias=False) for _ in range(3))
            self.c.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(self.b(self.a(x)))

    ep = torch.export.export(Tied(), (torch.randn(2, 4),), strict=False)
    signature, gm = ep.graph_signature, ep.graph_module
    assert "c.weight" in ep.state_dict
    # 16, 16, 0 with the tie: 16 | 16. Without: 16, 16, 16, of which the first stage may have two.
    assert ids_of(balanced(gm, 2, signature=signature, state_dict=ep.state_dict)) == [0, 1, 1]


def test_balanced_knows_parameters_of_dynamo() -> None:
    gm = dynamo_graph(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), torch.randn(2, 4))
    assert ids_of(balanced(gm, 2)) == [0, 1]


@pytest.mark.parametrize(
    ("refused", "match"),
    [
        (lambda tower: by_module(tower, depth=0), "depth"),
        (lambda tower: balanced(tower, 0), "1 to 12.* got 0"),
        (lambda tower: balanced(tower, -1), "1 to 12.* got -1"),
        (lambda tower: balanced(tower, 13), "1 to 12.* got 13"),
        (lambda tower: balanced(tower, 2, by="flops"), "flops"),
        # The inputs of a graph exported without strict don't say which of them are parameters.
        (lambda _: balanced(exported_tower().graph_module, 2), "signature"),
    ],
)
def test_refusals(refused: Callable[[fx.GraphModule], object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        refused(fx.symbolic_trace(Tower()))


# ---- around -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    [
        torch.ops.aten.add.Tensor,
        torch.ops.aten.add,
        "aten::add",
        "aten.add",
        "aten::add.Tensor",
        "aten.add.Tensor",
    ],
)
def test_around_names_of_an_operator(op: object) -> None:
    gm = exported(lambda x: (x.sin().cos() + 1 + 2).sin(), torch.randn(3))
    # sin, cos | add | add | sin
    assert ids_of(around(gm, [op])) == [0, 0, 1, 2, 3]  # type: ignore[list-item]


@pytest.mark.parametrize(
    "op",
    ["aten::add.Scalar", "add", "add.Tensor", torch.ops.aten.add.Scalar, operator.add, nn.Module],
)
def test_around_other_names_match_nothing(op: object) -> None:
    gm = exported(lambda x: x.sin() + 1, torch.randn(3))
    assert ids_of(around(gm, [op])) == [0, 0]  # type: ignore[list-item]


@pytest.mark.parametrize("op", ["aten::sin.default", "aten.sin.default", "aten::sin"])
def test_around_unnamed_overload(op: str) -> None:
    gm = exported(lambda x: x.cos().sin().cos(), torch.randn(3))
    assert ids_of(around(gm, [op])) == [0, 1, 2]


@pytest.mark.parametrize("op", [nn.Linear, "Linear", nn.Module])
def test_around_classes_of_modules(op: object) -> None:
    gm = fx.symbolic_trace(nn.Sequential(Block(), Block()))
    # linear | relu, add | linear | relu, add
    assert ids_of(around(gm, [op])) == [0, 1, 1, 2, 3, 3]  # type: ignore[list-item]


def test_around_methods_functions_and_predicates() -> None:
    gm = fx.symbolic_trace(Block())  # linear, relu, add
    assert ids_of(around(gm, ["relu"])) == [0, 1, 2]
    assert ids_of(around(gm, [operator.add])) == [0, 0, 1]
    assert ids_of(around(gm, where=lambda node: node.name == "linear")) == [0, 1, 1]
    both = around(gm, ["relu"], where=lambda node: node.op == "call_module")
    assert ids_of(both) == [0, 1, 2]


def test_around_unpacking_joins_its_op() -> None:
    class Unpack(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            first, second = torch.split(x.sin(), 2)
            return first + second

    gm = fx.symbolic_trace(Unpack())
    callback = around(gm, [torch.split])
    # sin | split, getitem, getitem | add
    assert ids_of(callback) == [0, 1, 1, 1, 2]
    x = torch.randn(4)
    split = split_module(gm, None, callback, keep_original_order=True)
    assert torch.equal(split(x), Unpack()(x))


def test_around_refuses_what_is_no_list_of_ops() -> None:
    gm = fx.symbolic_trace(Block())
    for ops in ("aten::relu", torch.ops.aten.relu, torch.ops.aten.relu.default, torch.relu):
        with pytest.raises(TypeError, match="single op"):
            around(gm, ops)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 3"):
        around(gm, [3])  # type: ignore[list-item]


def test_regions_of_grad_mode_can_be_split() -> None:
    """split_module wants ids that never fall where it finds such a region."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        with torch.no_grad():
            y = y.cos()
        return y.relu() + x

    x = torch.randn(3)
    gm = dynamo_graph(forward, x)
    for callback in (around(gm, ["relu"]), balanced(gm, 3, by="nodes")):
        split = split_module(gm, None, callback, keep_original_order=True)
        (result,) = split(x)
        assert torch.equal(result, forward(x))


def test_around_unpacking_of_another_value_does_not_join() -> None:
    def forward(x: torch.Tensor) -> torch.Tensor:
        halves = torch.split(x, 2)
        y = x.relu()
        return halves[0] + y

    # split | relu | getitem, add
    assert ids_of(around(fx.symbolic_trace(forward), ["relu"])) == [0, 1, 2, 2]
