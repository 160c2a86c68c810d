"""Rare arguments and values: `GraphModuleSerializer` gives torch's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch._export.serde import serialize as theirs
from torch.export.graph_signature import CustomObjArgument
from torch.fx import Graph, Node
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.fx.traceback import NodeSource

from fxpress import UnsupportedError
from fxpress import serialize as ours
from fxpress._files.serde.operators import describe_operator, node_failed, symbolic
from tests.support.mixed import mixed_program
from tests.support.opaque import handle_of_a_custom_class

aten = torch.ops.aten


def outcome(call: Callable[[Any], Any], module: Any) -> Any:
    """Return the result and the tables of the serializer, or the type of the error."""
    serializer = module.GraphModuleSerializer(None, [])
    try:
        result = call(serializer)
    except Exception as error:
        return next(kind for kind in type(error).__mro__ if "fxpress" not in kind.__module__)
    return result, vars(serializer.graph_state), serializer.custom_objs


def as_torch(call: Callable[[Any], Any]) -> Any:
    found = outcome(call, ours)
    assert found == outcome(call, theirs)
    return found


@pytest.fixture(scope="module")
def packed() -> Any:
    """An object of a class of C++ that can be pickled."""
    weight = torch.quantize_per_tensor(torch.ones(2, 2), 1.0, 0, torch.qint8)
    return torch.ops.quantized.linear_prepack(weight, None)


# ---- arguments ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "declared",
    [
        torch.IntType.get(),
        torch.OptionalType(torch.ListType.ofInts()),
        torch.ListType(torch.OptionalType.ofTensor()),
        torch.ListType(torch.ComplexType.get()),
        torch.ListType(torch.ListType.ofFloats()),
        torch.ListType(torch.ListType.ofBools()),
    ],
    ids=str,
)
def test_empty_lists(declared: Any) -> None:
    as_torch(lambda serializer: serializer.serialize_input([], declared))


def test_objects_of_cpp(packed: Any) -> None:
    found, _, kept = as_torch(lambda serializer: serializer.serialize_input(packed))
    assert found.type == "as_custom_obj"
    assert list(kept.values()) == [packed]
    cannot = torch.classes.profiling._ScriptProfile()
    assert as_torch(lambda s: s.serialize_input(cannot)) is theirs.SerializeError


def test_objects_of_classes_of_python() -> None:
    handle = handle_of_a_custom_class()
    found, _, kept = as_torch(lambda serializer: serializer.serialize_input(handle))
    assert found.type == "as_custom_obj"
    assert list(kept.values()) == [handle]


def calls() -> list[Node]:
    return [node for node in mixed_program().graph.nodes if node.op == "call_function"]


def numbers_of_traces() -> list[Any]:
    """A size, a number and a comparison, with known and with data-dependent values."""
    env = ShapeEnv()
    size, number = env.create_unbacked_symint(), env.create_unbacked_symfloat()
    known = torch.SymInt(SymNode(sympy.Integer(3), env, int, 3))
    exact = torch.SymFloat(SymNode(sympy.Float(1.5), env, float, 1.5))
    true = torch.SymBool(SymNode(sympy.true, env, bool, True))
    return [size, number, number > 1.0, known, exact, true]


def test_numbers_of_traces() -> None:
    for value in numbers_of_traces():
        as_torch(lambda serializer, value=value: serializer.serialize_input(value))
    for value in (*numbers_of_traces(), 2, 2.5, True, None, "text", object()):
        as_torch(lambda serializer, value=value: serializer.serialize_output("name", value))


def test_known_numbers() -> None:
    assert [symbolic(value, {}) for value in numbers_of_traces()[3:]] == [3, 1.5, True]
    with pytest.raises(theirs.SerializeError, match="symbolic number"):
        symbolic("text", {})


# ---- what Inductor writes -----------------------------------------------------------------------


def buffers() -> tuple[Any, ...]:
    from torch._inductor import ir

    layout = ir.FixedLayout(torch.device("cpu"), torch.float32, [2], [1])
    return tuple(ir.InputBuffer(name=name, layout=layout) for name in ("buf0", "buf1", None))


def test_buffers() -> None:
    first, second, unnamed = buffers()
    for value in (first, [first, second], [first, None], [first, object()]):
        found = as_torch(lambda serializer, value=value: serializer.serialize_input(value))
        assert isinstance(found, tuple) or found is theirs.SerializeError
    assert outcome(lambda s: s.serialize_input(unnamed), ours) is AssertionError


def test_objects_that_inductor_holds(packed: Any) -> None:
    from torch._inductor import ir

    held = ir.TorchBindObject(name="held", value=packed)
    found, _, kept = as_torch(lambda serializer: serializer.serialize_input(held))
    assert found.type == "as_custom_obj"
    assert kept == {"held": packed}
    unnamed = ir.TorchBindObject(name=None, value=packed)
    assert as_torch(lambda serializer: serializer.serialize_input(unnamed)) is AssertionError
    bind = torch.ops.higher_order.call_torchbind
    found, *_ = as_torch(lambda s: s.serialize_inputs(bind, (held, "bias"), {}))
    assert len(found) == 2


# ---- attributes ---------------------------------------------------------------------------------


class LoweredBackendModule(nn.Module):
    """The types that serializers know by this name."""

    def __init__(self, name: str | None, backend: str | None) -> None:
        super().__init__()
        self.module_name, self.backend_id = name, backend


@pytest.mark.parametrize(
    "attribute",
    [
        LoweredBackendModule("part", "backend"),
        LoweredBackendModule(None, "backend"),
        LoweredBackendModule("part", None),
        nn.Linear(2, 2),
    ],
)
def test_modules_as_arguments(attribute: nn.Module) -> None:
    root = nn.Module()
    root.part = attribute
    graph = Graph(root)
    node = graph.get_attr("part")
    as_torch(lambda serializer: serializer.serialize_input(node))


# ---- nodes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        CustomObjArgument(name="x", class_fqn="some.Class"),
        torch.ones(2),
        None,
        3,
        True,
        2.5,
        "text",
        object(),
    ],
    ids=lambda value: type(value).__name__,
)
def test_placeholders(value: Any) -> None:
    node = Graph().placeholder("x")
    node.meta["val"] = value
    as_torch(lambda serializer: serializer.handle_placeholder(node))


def returning(*values: Any) -> Node:
    graph = Graph()
    node = graph.output(None)
    node.args = values
    return node


@pytest.mark.parametrize("values", [(), (1, 2), (3,), ((3, "text"),), ([],)], ids=str)
def test_outputs(values: tuple[Any, ...]) -> None:
    as_torch(lambda serializer: serializer.handle_output(returning(*values)))


def test_a_single_output() -> None:
    def handle(serializer: Any) -> None:
        graph = Graph()
        x = graph.placeholder("x")
        x.meta["val"] = torch.ones(2)
        serializer.handle_placeholder(x)
        serializer.handle_output(graph.output(x))

    _, state, _ = as_torch(handle)
    assert state["is_single_tensor_return"]


def test_names_of_operators() -> None:
    for target in ("text", aten.sin.default, torch.ops.higher_order.cond, abs):
        as_torch(lambda serializer, target=target: serializer.serialize_operator(target))


def test_targets_that_cannot_be_called() -> None:
    node = calls()[0]
    node.target = 3
    with pytest.raises(AssertionError):
        ours.GraphModuleSerializer(None, []).handle_call_function(node)
    assert describe_operator(object())[1:] == ("", (), (), False, False, False, False)


def test_metadata() -> None:
    for node in calls():
        node.meta["custom"] = {"a": 1}
        node.meta.pop("from_node", None)  # what torch writes of it has addresses
        as_torch(lambda serializer, node=node: serializer.serialize_metadata(node))
        node.meta["custom"] = object()
        as_torch(lambda serializer, node=node: serializer.serialize_metadata(node))


def test_where_nodes_come_from() -> None:
    node = Graph().placeholder("x")
    source = NodeSource(node, "pass")
    for value in (None, [], [source], [source, "text"]):
        as_torch(lambda serializer, value=value: serializer._serialize_from_node(value))


def test_results_that_are_all_tensors() -> None:
    graph = Graph()
    node = graph.call_function(aten.unbind.int, (graph.placeholder("x"),))
    node.meta["val"] = [torch.ones(2), torch.zeros(3)]
    as_torch(lambda serializer: serializer._handle_getitem_users(node))


def test_errors_of_fxpress_are_raised_unchanged() -> None:
    node = Graph().placeholder("x")
    for error in (UnsupportedError("not this"), ours.SerializeError("nor that")):
        expected = type(error) if isinstance(error, UnsupportedError) else theirs.SerializeError
        with pytest.raises(expected):
            node_failed(node, error)
