"""The native rewrite of captured graphs, and plans that fit none."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch._dynamo import functional_export as torch_capture
from torch._dynamo.source import GetItemSource, LocalSource
from torch.fx import Graph, GraphModule, Node
from torch.fx import traceback as fx_traceback

from fxpress import _native
from fxpress._graphs.capture import functional_export as capture_impl
from fxpress._graphs.capture.transformer import rewrite_captured
from fxpress._torch.capture import birth_rules
from fxpress._torch.versions import features
from fxpress.functional_export import DynamoGraphTransformer
from tests.support.captured import assert_same_captured_graph

LOCAL = LocalSource("flat_args", is_input=True)


def captured(*, val: bool = False, module: bool = False) -> GraphModule:
    """The capture of a function with two inputs and a tensor that is not an input."""
    root = nn.Module()
    root.add_module("sub", nn.ReLU())
    root.add_module("again", root.sub)
    root.register_parameter("L__self____export_root_w", nn.Parameter(torch.rand(3)))
    root.register_buffer("plain", torch.rand(3))
    graph = Graph()
    a = graph.placeholder("l_a_")
    b = graph.placeholder("l_b_")
    other = graph.placeholder("l_other_")
    for node in (a, b, other):
        node.meta["val" if val else "example_value"] = torch.rand(3)
    a.meta["tensor_dict"] = {}
    w = graph.get_attr("L__self____export_root_w")
    p = graph.get_attr("plain")
    total = graph.call_function(torch.add, (a, b), name="res")
    total.meta = {
        "stack_trace": "File a, line 1",
        "nn_module_stack": {"x": ("L['self']", nn.Module)},
        "custom": {"k": [1]},
        "from_node": [fx_traceback.NodeSource(a, "earlier")],
        "example_value": torch.rand(3),
    }
    last = graph.call_method("mul", (total, w), {"other": p})
    if module:
        last = graph.call_module("again", (last,))
    last = graph.call_function(torch.cat, ([last, other, last],), {"dim": 0})
    graph.output((last, {"t": total}), None).meta["stack_trace"] = "File b"
    made = GraphModule(root, graph)
    made.meta = {"dynamo_flat_name_to_original_fqn": {"a": "b"}, "backend_id": 3}
    return made


def functions(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if node.op == "call_function"]


def plan(outputs: dict[int, Any] | None = None, source: Any = LOCAL) -> tuple[Any, ...]:
    """Three flat inputs, of which the graph knows the first and the last."""
    outputs = outputs or {
        1: ("graph_out", 0),
        0: ("graph_out", 1),
        3: ("input", GetItemSource(LOCAL, 1)),
        2: ("constant", "text"),
        4: ("other", 3),
    }
    sources = {0: GetItemSource(LOCAL, 2), 1: GetItemSource(LOCAL, 0), 2: source}
    flat = [torch.rand(3), 5, torch.rand(3)]
    return flat, [set(), set(), set()], {2: 0, 0: 1}, outputs, None, sources


def both(module: GraphModule, plan: tuple[Any, ...]) -> tuple[GraphModule, GraphModule]:
    theirs = torch_capture.DynamoGraphTransformer(module, *plan).transform()
    torch_capture.clean_export_root(theirs)
    return rewrite_captured(module, *plan), theirs


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("source", [LOCAL, GetItemSource(LOCAL, 7), None])
def test_rewritten_as_by_torch(module: bool, source: Any) -> None:
    made = captured(module=module)
    given = plan(source=source)
    if source is None:
        del given[-1][2]
    ours, theirs = both(made, given)
    assert_same_captured_graph(ours.graph, theirs.graph)
    assert list(ours._parameters) == list(theirs._parameters) == ["L__self___w"]
    assert list(ours._buffers) == list(theirs._buffers)
    assert ours.meta == theirs.meta == {"dynamo_flat_name_to_original_fqn": {"a": "b"}}
    by_node = DynamoGraphTransformer(made, *given).transform()
    torch_capture.clean_export_root(by_node)
    assert_same_captured_graph(by_node.graph, theirs.graph)


@pytest.mark.parametrize("value", [None, "text", 3], ids=repr)
def test_values_from_elsewhere_that_are_no_tensors(value: Any) -> None:
    """Without an example they stay inputs."""

    def made() -> GraphModule:
        module = captured()
        other = module.graph.find_nodes(op="placeholder")[-1]
        other.meta = {} if value is None else {"example_value": value}
        return module

    ours, theirs = both(made(), plan())
    assert_same_captured_graph(ours.graph, theirs.graph)
    by_node = DynamoGraphTransformer(made(), *plan()).transform()
    torch_capture.clean_export_root(by_node)
    assert_same_captured_graph(by_node.graph, theirs.graph)
    for module in (ours, theirs, by_node):
        assert getattr(module, "_captured_2", None) == value


def test_tensors_from_elsewhere_with_values() -> None:
    """torch converts such a tensor to a bool, and raises."""
    made = captured(val=True)
    with pytest.raises(RuntimeError, match="ambiguous"):
        torch_capture.DynamoGraphTransformer(made, *plan()).transform()
    made = captured(val=True)
    ours = rewrite_captured(made, *plan())
    (node,) = [n for n in ours.graph.find_nodes(op="get_attr") if n.target == "_captured_2"]
    assert node.meta["val"] is made._captured_2
    assert ours._captured_2 is made._captured_2
    by_node = DynamoGraphTransformer(made, *plan()).transform()
    torch_capture.clean_export_root(by_node)
    assert_same_captured_graph(ours.graph, by_node.graph)


def test_dimensions_of_each_input() -> None:
    flat, _, *rest = plan()
    for rewrite in (
        rewrite_captured,
        DynamoGraphTransformer,
        torch_capture.DynamoGraphTransformer,
    ):
        with pytest.raises(AssertionError, match=r"dimensions|length"):
            rewrite(captured(), flat, [set()], *rest)


@pytest.mark.parametrize("preserved", [False, True])
def test_meta_of_tracing_now(preserved: bool) -> None:
    """Nodes without meta get an outer tracer's; autograd's number is kept, or created."""
    with (
        fx_traceback.preserve_node_meta(),
        fx_traceback.annotate({"outer": 1}),
        fx_traceback._preserve_node_seq_nr(preserved),
    ):
        made = captured()
        next(iter(made.graph.find_nodes(op="call_method"))).meta["seq_nr"] = 77
        ours, theirs = both(made, plan())
    assert_same_captured_graph(ours.graph, theirs.graph)
    numbers = [n.meta.get("seq_nr") for n in ours.graph.nodes]
    assert (77 in numbers) is preserved


def test_meta_of_gradients() -> None:
    made = captured()
    nodes = functions(made.graph)
    nodes[0].meta["stack_trace"] = fx_traceback.GRADIENT_ACC_SPECIAL_STACK + " there"
    nodes[1].meta.update(in_grad_fn=1, grad_fn_seq_nr=[4, 9], autograd_backward=True)
    ours, theirs = both(made, plan())
    assert_same_captured_graph(ours.graph, theirs.graph)
    assert functions(ours.graph)[1].meta["seq_nr"] == 9


def test_meta_of_replayed_nodes() -> None:
    made = captured()
    replayed = Graph().placeholder("r")
    replayed.meta = {"custom": {"r": 1}, "seq_nr": 5, "stack_trace": "File r"}
    with fx_traceback.set_current_replay_node(replayed):
        ours, theirs = both(made, plan())
    assert_same_captured_graph(ours.graph, theirs.graph)
    assert functions(ours.graph)[0].meta["is_functional_regenerated"]


def native(made: GraphModule, **changes: Any) -> GraphModule:
    given = {
        "inputs": [{}, {}],
        "places": [0, 1, None],
        "outputs": [(0, 0)],
        "module_paths": {},
        **changes,
    }
    return _native.rewrite_captured(made, *given.values(), birth_rules())


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"places": [0, 1]}, ValueError),
        ({"places": [0, 2, None]}, IndexError),
        ({"places": [0, -1, None]}, IndexError),
        ({"places": [0, 10**30, None]}, IndexError),
        ({"outputs": [(0, 2)]}, IndexError),
        ({"outputs": [(0, "x")]}, TypeError),
        ({"outputs": [(1, 2)]}, IndexError),
        ({"outputs": [3]}, TypeError),
        ({"outputs": [("a", 3)]}, TypeError),
        ({"inputs": [{}, 3]}, TypeError),
    ],
)
def test_plans_that_do_not_fit(changes: dict[str, Any], error: type[Exception]) -> None:
    made = captured()
    before = str(made.graph)
    with pytest.raises(error):
        native(made, **changes)
    assert str(made.graph) == before
    assert native(made).graph.find_nodes(op="output")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fields", 3),
        ("outer", []),
        ("overlay", None),
        ("marker", b""),
        ("provenance", 3),
        ("provenance.source", 3),
        ("provenance.source_info", 3),
        ("provenance.attributes", []),
        ("provenance.keep", None),
        ("copy", 3),
    ],
)
def test_rules_of_wrong_types(name: str, value: Any) -> None:
    made = captured()
    rules: dict[str, Any] = birth_rules()
    *path, key = name.split(".")
    holder = rules
    for part in path:
        holder[part] = inner = dict(holder[part])
        holder = inner
    holder[key] = value
    with pytest.raises(TypeError, match=key):
        _native.rewrite_captured(made, [{}, {}], [0, 1, None], [(0, 0)], {}, rules)
    del holder[key]
    with pytest.raises(KeyError, match=key):
        _native.rewrite_captured(made, [{}, {}], [0, 1, None], [(0, 0)], {}, rules)


def test_meta_that_is_no_dict() -> None:
    made = captured()
    functions(made.graph)[0].meta = [("a", 1)]
    with pytest.raises(TypeError, match="expected a dict"):
        native(made)
    with pytest.raises(TypeError, match="expected a dict"):
        _native.clean_stacks(made.graph, False)


def test_modules_without_a_path() -> None:
    with pytest.raises(KeyError, match="again"):
        native(captured(module=True))


def test_graph_without_an_output() -> None:
    made = captured()
    made.graph.erase_node(made.graph.output_node())
    with pytest.raises(ValueError, match="expected an output node"):
        native(made)


def test_graph_that_is_not_in_order() -> None:
    made = captured()
    first, last = functions(made.graph)
    last.append(first)
    with pytest.raises(RuntimeError, match=f"nonexistent value {first.name}"):
        torch_capture.DynamoGraphTransformer(made, *plan()).transform()
    with pytest.raises(RuntimeError, match=f"{first.name} is used before it is defined"):
        native(made)


def test_copies_that_fail() -> None:
    class Uncopied:
        def __copy__(self) -> Any:
            raise ZeroDivisionError

    made = captured()
    functions(made.graph)[0].meta["custom"] = Uncopied()
    with pytest.raises(ZeroDivisionError):
        native(made)


def test_attributes_that_are_not_there() -> None:
    made = captured()
    del made.plain
    with pytest.raises(AttributeError, match="plain"):
        native(made)


def test_code_is_made_once() -> None:
    module = captured()
    with mock.patch.object(Graph, "python_code") as generate:
        made = rewrite_captured(module, *plan())
        generate.assert_not_called()
    assert "torch.cat" in made.code


def test_earlier_provenance_is_shared_as_by_torch() -> None:
    made = captured()
    node = functions(made.graph)[0]
    earlier = node.meta["from_node"]
    theirs = fx_traceback.NodeSource(node).from_node
    (ours,) = functions(native(made).graph)[0].meta["from_node"]
    assert (ours.from_node[0] is earlier[0]) == (theirs[0] is earlier[0])
    assert (theirs[0] is earlier[0]) == features.provenance_is_shared
    assert ours.from_node is not earlier


def test_slices_of_inputs_are_no_inputs() -> None:
    """Only an integer index selects the flat input of a placeholder."""
    whole = capture_impl._Captured(lambda a: a, [torch.ones(2)], None, None)
    sources = {0: GetItemSource(LOCAL, slice(0, 1)), 1: GetItemSource(LOCAL, 0)}
    metadata = mock.Mock(graph_input_idx_to_local_source=sources)
    whole.out = mock.Mock()
    whole.out.graph_capture_output.output_graph.export_metadata = metadata
    whole.examples = [torch.zeros(1), torch.zeros(2)]
    with mock.patch.object(capture_impl, "rewrite_and_clean") as rewrite:
        whole.graph_module = mock.Mock()
        whole.module()
    _, flat_inputs, _, order, *_ = rewrite.call_args.args
    assert order == {0: 1}
    assert flat_inputs[0] is whole.examples[1]
