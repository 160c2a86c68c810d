"""The ready-made split callbacks and the picture of a split."""

from __future__ import annotations

import operator
import re
import sys
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.export import ExportedProgram
from torch.fx.passes.split_module import split_module_simple

from fxpress.partition import SplitCallback, around, balanced, by_module, draw
from fxpress.split_module import split_module

SVG = "{http://www.w3.org/2000/svg}"


class Block(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.register_buffer("shift", torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu() + self.shift


class Tower(nn.Module):
    """Two blocks, the first of them called twice with a node of the root's between, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        for layer in self.layers:
            x = layer(x)
        x = self.layers[0](x - 1)
        return self.head(x)


# Tower's operations in graph order: mul, 3 of layers.0, 3 of layers.1, sub, 3 of layers.0, head.
TOWER_DEPTH_1 = [0, *[1] * 6, 2, *[3] * 3, 4]
TOWER_DEPTH_2 = [0, *[1] * 3, *[2] * 3, 3, *[4] * 3, 5]


def exported_tower(*, strict: bool = False) -> ExportedProgram:
    return torch.export.export(Tower().eval(), (torch.randn(2, 4),), strict=strict)


def dynamo_graph(model: Callable[..., torch.Tensor], *args: torch.Tensor) -> fx.GraphModule:
    graphs: list[fx.GraphModule] = []

    def backend(gm: fx.GraphModule, _inputs: list[torch.Tensor]) -> fx.GraphModule:
        graphs.append(gm)
        return gm

    torch._dynamo.reset()
    torch.compile(model, backend=backend)(*args)
    (gm,) = graphs
    return gm


def ids_of(callback: SplitCallback) -> list[int]:
    return list(callback.values())


def graph_of(build: Callable[[fx.Graph, fx.Node], fx.Node]) -> fx.GraphModule:
    graph = fx.Graph()
    graph.output(build(graph, graph.placeholder("x")))
    return fx.GraphModule(nn.Module(), graph)


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


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(
    ("depth", "expected"),
    [(1, TOWER_DEPTH_1), (2, TOWER_DEPTH_2)],
)
def test_by_module_of_exported_graph(strict: bool, depth: int, expected: list[int]) -> None:
    gm = exported_tower(strict=strict).graph_module
    assert ids_of(by_module(gm, depth=depth)) == expected


def test_by_module_below_the_called_module() -> None:
    gm = exported_tower().graph_module
    # mul | linear | relu, add | linear | relu, add | sub | linear | relu, add | head
    assert ids_of(by_module(gm, depth=3)) == [0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 7, 8]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("layers.1", [0, 0, 0, 0, 1, 1, 1, 2, 2, 2, 2, 2]),
        ("layers", [0, *[1] * 6, 2, *[3] * 3, 4]),
        ("layers.*", [0, *[1] * 3, *[2] * 3, 3, *[4] * 3, 5]),
        ("*.linear", [0, 1, 2, 2, 3, 4, 4, 4, 5, 6, 6, 6]),
        ("layer", [0] * 12),  # a prefix of path components, not of letters
    ],
)
def test_by_module_path(path: str, expected: list[int]) -> None:
    assert ids_of(by_module(exported_tower().graph_module, path=path)) == expected


def test_by_module_path_and_depth() -> None:
    gm = exported_tower().graph_module
    assert ids_of(by_module(gm, depth=2, path="layers")) == TOWER_DEPTH_2


# Neither records a stack for the root's own nodes: they stay with the node before, and the first
# with the first node that has a module. So layers.0 and the sub before it, a node of layers.1:
# mul, layers.0 | layers.1, sub | layers.0 | head
ROOT_UNRECORDED = [0, *[0] * 3, *[1] * 3, 1, *[2] * 3, 3]


def test_by_module_of_symbolic_trace() -> None:
    gm = fx.symbolic_trace(Tower())
    assert ids_of(by_module(gm, depth=2)) == ROOT_UNRECORDED


def test_by_module_of_dynamo_graph() -> None:
    gm = dynamo_graph(Tower().eval(), torch.randn(2, 4))
    assert ids_of(by_module(gm, depth=2)) == ROOT_UNRECORDED


def test_by_module_goes_by_targets_without_stacks() -> None:
    gm = fx.symbolic_trace(Tower())
    for node in gm.graph.nodes:
        node.meta.pop("nn_module_stack", None)
    # Only the four linear layers have a target; what follows each of them stays with it.
    assert ids_of(by_module(gm, depth=2)) == ROOT_UNRECORDED


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


def test_by_module_refuses_depth_0() -> None:
    with pytest.raises(ValueError, match="depth"):
        by_module(fx.symbolic_trace(Tower()), depth=0)


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
    # With three, of all cuts in front of c and d, 8 | 16 | 64 comes closest to even.
    assert ids_of(balanced(fx.symbolic_trace(Uneven()), 3)) == [0, 0, 1, 2, 2]


def test_balanced_by_bytes_or_elements() -> None:
    root = nn.Module()
    root.register_buffer("wide", torch.zeros(4, dtype=torch.float64))  # 4 elements, 32 bytes
    root.register_buffer("narrow", torch.zeros(12, dtype=torch.int8))  # 12 elements, 12 bytes
    root.register_buffer("half", torch.zeros(10, dtype=torch.float16))  # 10 elements, 20 bytes
    graph = fx.Graph()
    value = graph.placeholder("x")
    for name in ("wide", "narrow", "half"):
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


@pytest.mark.parametrize("n", [0, -1, 13])
def test_balanced_refuses_impossible_counts(n: int) -> None:
    with pytest.raises(ValueError, match=f"{n} stages.* 12 nodes"):
        balanced(fx.symbolic_trace(Tower()), n)


def test_balanced_refuses_an_unknown_weight() -> None:
    with pytest.raises(ValueError, match="flops"):
        balanced(fx.symbolic_trace(Tower()), 2, by="flops")  # type: ignore[arg-type]


def test_balanced_refuses_to_balance_nothing() -> None:
    """The inputs of a graph exported without strict don't say which of them are parameters."""
    with pytest.raises(ValueError, match="signature"):
        balanced(exported_tower().graph_module, 2)


# ---- around -------------------------------------------------------------------------------------


def exported(function: Callable[..., torch.Tensor], *args: torch.Tensor) -> fx.GraphModule:
    class Wrapper(nn.Module):
        def forward(self, *xs: torch.Tensor) -> torch.Tensor:
            return function(*xs)

    return torch.export.export(Wrapper(), args, strict=False).graph_module


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
    for ops in ("aten::relu", torch.ops.aten.relu, torch.ops.aten.relu.default, F.relu):
        with pytest.raises(TypeError, match="alone"):
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


# ---- draw ---------------------------------------------------------------------------------------


def texts_of(svg: str, kind: str) -> list[list[str]]:
    """The lines of text of each node or edge of a picture."""
    root = ElementTree.fromstring(svg)
    groups = [group for group in root.iter(f"{SVG}g") if group.get("class") == kind]
    return [[text.text or "" for text in group.iter(f"{SVG}text")] for group in groups]


def partition_names(split: fx.GraphModule) -> list[str]:
    return [str(node.target) for node in split.graph.find_nodes(op="call_module")]


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


# ---- a real model -------------------------------------------------------------------------------

LAYERS = 2


@pytest.fixture(scope="module")
def llama() -> ExportedProgram:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
        attn_implementation="sdpa",
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.llama = model

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.llama(tokens, use_cache=False).logits

    return torch.export.export(Logits(), (torch.arange(10).reshape(2, 5),), strict=False)


def run_like(ep: ExportedProgram, gm: fx.GraphModule, tokens: torch.Tensor) -> torch.Tensor:
    """What `gm`, which has the inputs of the program's graph, makes of the tokens."""
    state = {**ep.state_dict, **ep.constants}
    specs = ep.graph_signature.input_specs
    inputs = [tokens if spec.target is None else state[spec.target] for spec in specs]
    (logits,) = gm(*inputs)
    return logits


def assert_same_logits(ep: ExportedProgram, split: fx.GraphModule) -> None:
    tokens = torch.arange(20, 30).reshape(2, 5)
    with torch.no_grad():
        expected = run_like(ep, ep.graph_module, tokens)
        assert torch.equal(run_like(ep, split, tokens), expected)


def test_llama_around_attention(llama: ExportedProgram) -> None:
    gm = llama.graph_module
    callback = around(gm, ["aten::scaled_dot_product_attention"])
    assert callback.count == 2 * LAYERS + 1
    attention = gm.graph.find_nodes(
        op="call_function", target=torch.ops.aten.scaled_dot_product_attention.default
    )
    assert [callback(node) for node in attention] == [1, 3]
    assert [ids_of(callback).count(partition) for partition in (1, 3)] == [1, 1]
    split = split_module(gm, None, callback, keep_original_order=True)
    assert partition_names(split) == [f"submod_{index}" for index in range(5)]
    assert_same_logits(llama, split)
    boxes = texts_of(draw(split, format="svg"), "node")
    assert [box[0] for box in boxes] == partition_names(split)


def test_llama_by_layer(llama: ExportedProgram) -> None:
    gm = llama.graph_module
    callback = by_module(gm, path="llama.model.layers.*")
    # Every layer in one piece: embeddings | layer 0 | layer 1 | norm and head.
    assert callback.count == LAYERS + 2
    for node, partition in callback.ids.items():
        paths = [path for path, _ in node.meta["nn_module_stack"].values()]
        layers = {f"llama.model.layers.{layer}" for layer in range(LAYERS)} & set(paths)
        if layers:
            assert layers == {f"llama.model.layers.{partition - 1}"}
        else:
            assert partition in (0, LAYERS + 1)
    assert ids_of(by_module(gm, depth=4, path="llama.model.layers")) == ids_of(callback)
    split = split_module(gm, None, callback, keep_original_order=True)
    assert_same_logits(llama, split)
    assert len(texts_of(draw(split, format="svg"), "node")) == LAYERS + 2


@pytest.mark.parametrize("keep_original_order", [False, True])
def test_llama_in_stages(llama: ExportedProgram, keep_original_order: bool) -> None:
    gm, signature = llama.graph_module, llama.graph_signature
    callback = balanced(gm, 3, signature=signature, state_dict=llama.state_dict)
    assert callback.count == 3
    split = split_module(gm, None, callback, keep_original_order=keep_original_order)
    assert_same_logits(llama, split)
    svg = draw(split, format="svg", signature=signature, state_dict=llama.state_dict)
    boxes = texts_of(svg, "node")
    assert len(boxes) == 3
    # No tensor is used in two stages, so that the stages' sizes add up to that of the state in use.
    state = {**llama.state_dict, **llama.constants}
    inputs = zip(signature.input_specs, gm.graph.find_nodes(op="placeholder"), strict=True)
    used = [spec.target for spec, node in inputs if spec.target is not None and node.users]
    total = sum(state[name].numel() for name in used)
    sizes = [int(re.findall(r"([\d,]+) parameters", box[1])[0].replace(",", "")) for box in boxes]
    assert sum(sizes) == total
