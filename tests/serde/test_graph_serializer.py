"""GraphModuleSerializer: entire graphs and parts of graphs equal torch's."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch._export.serde import schema
from torch._export.serde import serialize as theirs
from torch.export import ExportedProgram, export
from torch.export.graph_signature import ConstantArgument
from torch.fx import Node

from fxpress import serialize as ours
from tests.support.mixed import mixed_program
from tests.support.serialized import typed

aten = torch.ops.aten
PUBLIC = [n for n in vars(theirs.GraphModuleSerializer) if not n.startswith("__")]


def both(made: ExportedProgram) -> tuple[Any, Any]:
    parts = made.graph_signature, made.module_call_graph
    return ours.GraphModuleSerializer(*parts), theirs.GraphModuleSerializer(*parts)


def states(serializer: Any) -> dict[str, Any]:
    state = vars(serializer.graph_state)
    return {
        **state,
        "custom_objs": serializer.custom_objs,
        "duplicates": serializer.duplicate_getitem_nodes,
        "fields": serializer.treespec_namedtuple_fields,
    }


def without_addresses(value: Any) -> Any:
    """Number the ids of graphs, which are addresses in torch's objects."""
    for node in value:
        node.metadata.pop("from_node", None)
        for named in node.inputs:
            if str(named.arg.type) == "as_graph":
                without_addresses(named.arg.value.graph.nodes)
    return value


def test_names() -> None:
    for name in PUBLIC:
        assert hasattr(ours.GraphModuleSerializer(None, []), name), name
    with pytest.raises(TypeError):
        type("Sub", (ours.GraphModuleSerializer,), {})


def assert_graph_written_as_torch(made: ExportedProgram) -> None:
    """Assert equal objects, and equal tables of the serializer, for an entire graph."""
    mine, other = both(made)
    try:
        expected = other.serialize(made.graph_module)
    except theirs.SerializeError:
        pytest.skip("torch does not write it")
    found = mine.serialize(made.graph_module)
    without_addresses(found.graph.nodes), without_addresses(expected.graph.nodes)
    assert typed(found) == typed(expected)
    assert typed(states(mine)) == typed(states(other))
    if not expected.graph.outputs:
        return  # Z-156: torch takes no empty list apart
    program = schema.ExportedProgram(
        expected, {}, {}, schema.SchemaVersion(8, 0), torch_version=torch.__version__
    )
    constants = set(made.constants)
    assert typed(ours.canonicalize(program, constants)) == typed(
        theirs.canonicalize(program, constants)
    )


@pytest.mark.parametrize("decomposed", [False, True])
def test_node_by_node(decomposed: bool) -> None:
    made = mixed_program(decomposed)
    mine, other = both(made)
    for node in made.graph.nodes:
        for serializer in (mine, other):
            getattr(serializer, f"handle_{node.op}")(node)
        without_addresses(mine.graph_state.nodes), without_addresses(other.graph_state.nodes)
        assert states(mine) == states(other), node
    assert mine.graph_state.nodes


@pytest.mark.parametrize("decomposed", [False, True])
def test_parts_of_nodes(decomposed: bool) -> None:
    made = mixed_program(decomposed)
    mine, other = both(made)
    for node in made.graph.find_nodes(op="placeholder"):
        mine.handle_placeholder(node), other.handle_placeholder(node)
    for node in made.graph.nodes:
        if node.op != "call_function" or node.target in (torch.ops.higher_order.cond,):
            continue
        for name, arguments in (
            ("serialize_operator", (node.target,)),
            ("_output_node_name_at_index", (node, 0)),
            ("serialize_inputs", (node.target, node.args, node.kwargs)),
            ("serialize_sym_op_inputs", (node.target, node.args)),
            ("serialize_hoo_inputs", (node.args, node.kwargs)),
            ("serialize_outputs", (node,)),
        ):
            try:
                expected = getattr(other, name)(*arguments)
            except Exception as error:
                with pytest.raises(type(error)):
                    getattr(mine, name)(*arguments)
                continue
            assert typed(getattr(mine, name)(*arguments)) == typed(expected), (name, node)
            assert states(mine) == states(other), (name, node)
        if node.target in theirs._SYM_OPS:  # it has no schema, and is not noted yet
            mine.serialize_output(node.name, node.meta["val"])
            other.serialize_output(node.name, node.meta["val"])
        for test in ("is_sym_int_arg", "is_sym_float_arg", "is_sym_bool_arg"):
            for value in (node, *node.args, 1, 1.0, True, "text"):
                assert getattr(mine, test)(value) == getattr(other, test)(value)


def test_the_signature_and_module_calls() -> None:
    made = mixed_program(decomposed=True)
    mine, other = both(made)
    signature = made.graph_signature
    assert mine.serialize_signature(signature) == other.serialize_signature(signature)
    for spec in signature.input_specs:
        assert mine.serialize_input_spec(spec) == other.serialize_input_spec(spec)
        assert mine.serialize_argument_spec(spec.arg) == other.serialize_argument_spec(spec.arg)
    for spec in signature.output_specs:
        assert mine.serialize_output_spec(spec) == other.serialize_output_spec(spec)
    calls = made.module_call_graph
    assert mine.serialize_module_call_graph(calls) == other.serialize_module_call_graph(calls)
    call = calls[0].signature
    found, expected = (s.serialize_module_call_signature(call) for s in (mine, other))
    assert found == expected
    assert mine.serialize_treespec(call.in_spec) == other.serialize_treespec(call.in_spec)
    meta = {"custom": {"a": 1}}
    found, expected = (s.serialize_graph_module_metadata(meta) for s in (mine, other))
    assert found == expected


ARGUMENTS = [
    (3, None),
    (True, None),
    (1.5, None),
    (1j, None),
    ("text", None),
    (None, None),
    (torch.float16, None),
    (torch.device("cpu"), None),
    (torch.channels_last, None),
    (torch.strided, None),
    ([1, 2], None),
    ([True], None),
    ([1.0, 2.0], None),
    (["a"], None),
    ([[1.0], [2.0]], None),
    ([(1, 2), (3, 4)], None),
    ([], torch.ListType.ofInts()),
    ([], torch.ListType.ofTensors()),
    ({"a": 1, "b": [2.0]}, None),
    (aten.sin.default, None),
    (object(), None),
    ([object()], None),
    ({1: 2}, None),
]


@pytest.mark.parametrize(("value", "kind"), ARGUMENTS, ids=lambda a: str(a)[:20])
def test_inductor_writes_arguments_without_a_graph(value: Any, kind: Any) -> None:
    mine, other = ours.GraphModuleSerializer(None, []), theirs.GraphModuleSerializer(None, [])
    try:
        expected = other.serialize_input(value, kind)
    except Exception as error:
        with pytest.raises(type(error)):
            mine.serialize_input(value, kind)
        return
    assert mine.serialize_input(value, kind) == expected


def with_two_of_one_result() -> ExportedProgram:
    """Two getitem nodes take the same result."""

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values, _ = x.topk(2)
            return values.sin()

    made = export(Model(), (torch.randn(3, 4),), strict=False)
    (topk,) = made.graph.find_nodes(op="call_function", target=aten.topk.default)
    (sin,) = made.graph.find_nodes(op="call_function", target=aten.sin.default)
    with made.graph.inserting_before(sin):
        second = made.graph.call_function(operator.getitem, (topk, 0))
    second.meta = dict(sin.args[0].meta)
    sin.args = (second,)
    return made


def test_two_nodes_that_take_one_result() -> None:
    made = with_two_of_one_result()
    mine, other = both(made)
    found, expected = (s.serialize_graph(made.graph_module) for s in (mine, other))
    assert found == expected
    assert mine.duplicate_getitem_nodes == other.duplicate_getitem_nodes != {}
    mine, other = both(made)
    for node in made.graph.nodes:
        for serializer in (mine, other):
            getattr(serializer, f"handle_{node.op}")(node)
        assert states(mine) == states(other), node
    assert mine.duplicate_getitem_nodes


def test_specs_that_are_not_valid() -> None:
    made = mixed_program(decomposed=True)
    specs = {spec.kind.name: spec for spec in made.graph_signature.input_specs}
    number = ConstantArgument("name", [1])
    mine, other = both(made)

    def refused(spec: Any) -> None:
        for serializer in (mine, other):
            with pytest.raises((AssertionError, theirs.SerializeError)):
                serializer.serialize_input_spec(spec)

    refused(replace(specs["PARAMETER"], arg=number))
    refused(replace(specs["PARAMETER"], target=None))
    buffer = replace(specs["BUFFER"])
    buffer.persistent = None
    refused(buffer)
    refused(replace(specs["USER_INPUT"], arg=number))
    for serializer in (mine, other):
        with pytest.raises(AssertionError):
            serializer.serialize_argument_spec(object())


def test_targets_that_are_no_functions() -> None:
    made = with_two_of_one_result()
    mine, other = both(made)
    (sin,) = made.graph.find_nodes(op="call_function", target=aten.sin.default)
    sin.target = "text"
    for serializer in (mine, other):
        with pytest.raises(theirs.SerializeError, match="Serializing text is not supported"):
            serializer.handle_call_function(sin)


@pytest.mark.parametrize("args", [(1,), (1, 2)], ids=repr)
def test_outputs_that_are_no_tuple(args: Any) -> None:
    made = with_two_of_one_result()
    made.graph.output_node().args = args
    for serializer in both(made):
        with pytest.raises(theirs.SerializeError, match=r"expected|one arg"):
            serializer.serialize_graph(made.graph_module)


def test_functions_on_numbers_take_no_keywords() -> None:
    made = mixed_program()
    node = next(n for n in made.graph.nodes if n.target in theirs._SYM_OPS)
    node.kwargs = {"a": 1}
    for serializer in both(made):
        with pytest.raises(AssertionError, match="expected no kwargs"):
            serializer.handle_call_function(node)


def test_inputs_of_an_unknown_kind() -> None:
    made = with_two_of_one_result()
    made.graph.find_nodes(op="placeholder")[0].meta["val"] = object()
    for serializer in both(made):
        with pytest.raises(theirs.SerializeError, match="Unimplemented graph input type"):
            serializer.serialize_graph(made.graph_module)


def test_results_that_are_no_sequence() -> None:
    made = with_two_of_one_result()
    (topk,) = made.graph.find_nodes(op="call_function", target=aten.topk.default)
    topk.meta["val"] = 3
    for serializer in both(made):
        with pytest.raises(TypeError):
            serializer.serialize_outputs(topk)


def test_inductor_writes_the_inputs_of_a_fallback_kernel() -> None:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    mine, other = ours.GraphModuleSerializer(None, []), theirs.GraphModuleSerializer(None, [])
    size = ShapeEnv().create_unbacked_symint()
    for target, args, kwargs in (
        (aten.full.default, ([2, size], 1.5), {"dtype": torch.float32}),
        (aten.arange.start_step, (0, size, 2), {}),
        (aten.native_dropout.default, (None, 0.5, True), None),
    ):
        found = mine.serialize_inputs(target, args, kwargs)
        assert found == other.serialize_inputs(target, args, kwargs)
    assert mine.is_inductor_sym_int_arg(size)
    assert mine.is_inductor_sym_int_arg(1)
    assert not mine.is_inductor_sym_int_arg(True)
    with pytest.raises(AssertionError, match="expected OpOverload"):
        mine.serialize_inputs(torch.add, (1, 2))
    with pytest.raises(AssertionError, match="not in _SYM_OPS"):
        mine.serialize_sym_op_inputs(torch.sin, (1,))


def test_another_graph_may_be_at_work_for_a_while() -> None:
    serializer = ours.GraphModuleSerializer(None, [])
    state = serializer.graph_state
    with pytest.raises(ValueError, match="inside"), serializer.save_graph_state():
        assert serializer.graph_state is not state
        raise ValueError("inside")
    assert serializer.graph_state is state


def test_values_have_names_of_their_own() -> None:
    serializer = ours.GraphModuleSerializer(None, [])
    for value in (torch.ones(2), True):
        serializer.serialize_output("name", value)
        with pytest.raises(AssertionError, match="'name' already in"):
            serializer.serialize_output("name", value)
    with pytest.raises(theirs.SerializeError, match="Unable to serialize output"):
        serializer.serialize_output("other", object())


def test_nodes_of_another_kind() -> None:
    serializer = ours.GraphModuleSerializer(None, [])
    node: Node = mixed_program().graph.output_node()
    for op in ("placeholder", "call_function"):
        with pytest.raises(AssertionError, match=f"expected {op} op, got output"):
            getattr(serializer, f"handle_{op}")(node)
    with pytest.raises(AssertionError, match="expected GraphModule"):
        serializer.serialize_graph(nn.Linear(2, 2))


def test_graph_state_is_like_torchs() -> None:
    assert vars(ours.GraphState()) == vars(theirs.GraphState())
    assert list(vars(ours.GraphState())) == list(vars(theirs.GraphState()))
    assert isinstance(ours.GraphModuleSerializer(None, []).serialize_input(1), schema.Argument)
