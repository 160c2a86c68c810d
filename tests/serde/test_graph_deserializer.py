"""GraphModuleDeserializer: entire graphs and parts of graphs equal torch's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch._export.serde import schema
from torch._export.serde import serialize as theirs
from torch.export import ExportedProgram, export
from torch.utils._sympy.symbol import SymT
from torch.utils._sympy.value_ranges import ValueRanges

from fxpress import serialize as ours
from tests.support.deserialized import assert_same_read_graph, with_the_storage_of
from tests.support.memory import check_no_blocks_leak
from tests.support.mixed import mixed_program
from tests.support.unflatten_compare import described

aten = torch.ops.aten
PUBLIC = [
    name
    for name in vars(theirs.GraphModuleDeserializer)
    if not name.startswith("__") and name != "_abc_impl"
]


def ranges_of(stored: Any) -> dict[str, Any]:
    from torch.utils._sympy.numbers import int_oo

    def limit(value: Any, default: Any) -> Any:
        return default if value is None else sympy.Integer(value)

    return {
        name: ValueRanges(limit(r.min_val, -int_oo), limit(r.max_val, int_oo))
        for name, r in stored.range_constraints.items()
    }


def stored_of(made: ExportedProgram) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The program as torch's objects; its constants; the ranges of its symbols."""
    written = theirs.serialize(made)
    stored = theirs._bytes_to_dataclass(schema.ExportedProgram, written.exported_program)
    return stored, dict(made.constants), ranges_of(stored)


def both(made: ExportedProgram) -> tuple[Any, Any, Any]:
    """Return both deserializers, which have read the graph, and the program as torch's objects."""
    stored, constants, ranges = stored_of(made)
    readers = ours.GraphModuleDeserializer(), theirs.GraphModuleDeserializer()
    for reader in readers:
        reader.result = reader.deserialize(stored.graph_module, {}, constants, None, ranges)
    return *readers, stored


def nodes_of(graph: torch.fx.Graph) -> list[Any]:
    return [(n.name, n.op, n.target, described((n.args, n.kwargs, n.meta))) for n in graph.nodes]


def test_names() -> None:
    for name in PUBLIC:
        assert hasattr(ours.GraphModuleDeserializer(), name), name
    with pytest.raises(TypeError):
        type("Sub", (ours.GraphModuleDeserializer,), {})


def assert_graph_read_as_torch(made: ExportedProgram) -> None:
    """The same graph, signature, calls, tables of names and symbols, from torch's objects."""
    try:
        theirs.serialize(made)
    except Exception:
        pytest.skip("torch does not write it")
    mine, other, _ = both(made)
    found, expected = mine.result, other.result
    assert_same_read_graph(found.graph_module.graph, expected.graph_module.graph, "")
    assert found.graph_module.graph is mine.graph
    assert found.graph_module.meta == expected.graph_module.meta
    assert described(vars(found.signature)) == described(vars(expected.signature))
    assert described(found.module_call_graph) == described(expected.module_call_graph)
    assert list(found.names_to_symbols) == list(expected.names_to_symbols)
    assert list(mine.symbol_name_to_symbol) == list(other.symbol_name_to_symbol)
    assert mine.signature is found.signature
    assert set(mine.serialized_name_to_node) == set(other.serialized_name_to_node)
    for key, node in mine.serialized_name_to_node.items():
        assert node.name == other.serialized_name_to_node[key].name
    assert set(mine.serialized_name_to_meta.map) == set(other.serialized_name_to_meta.map)
    assert list(mine.module._modules) == list(other.module._modules)
    assert mine.unbacked_symbols == other.unbacked_symbols == set()
    assert described(mine.symbol_name_to_range) == described(other.symbol_name_to_range)


def test_what_comes_with_the_graph() -> None:
    stored, constants, ranges = stored_of(mixed_program())
    state, examples = {"total": torch.zeros(4)}, ((torch.ones(2),), {})
    reader = ours.GraphModuleDeserializer()
    result = reader.deserialize(stored.graph_module, state, constants, examples, ranges)
    assert result.state_dict is state
    assert result.constants is constants is reader.constants
    assert result.example_inputs is examples is reader.example_inputs
    # In torch the names clash.
    again = reader.deserialize(stored.graph_module, b"", b"", None, ranges)
    assert again.state_dict == again.constants == {}
    assert nodes_of(again.graph_module.graph)[0][0] == "p_linear_weight"


@pytest.fixture(params=[False, True], ids=["plain", "decomposed"])
def opened(request: pytest.FixtureRequest) -> tuple[Any, Any, Any]:
    """Return fxpress's reader with the inputs, torch's with the entire graph, and the graph."""
    stored, constants, ranges = stored_of(mixed_program(request.param))
    other = theirs.GraphModuleDeserializer()
    other.deserialize(stored.graph_module, {}, constants, None, ranges)
    mine = ours.GraphModuleDeserializer()
    graph = stored.graph_module.graph
    inputs_only = schema.Graph(
        inputs=graph.inputs,
        outputs=[],
        nodes=[],
        tensor_values=graph.tensor_values,
        sym_int_values=graph.sym_int_values,
        sym_bool_values=graph.sym_bool_values,
        sym_float_values=graph.sym_float_values,
        custom_obj_values=graph.custom_obj_values,
    )
    mine.symbol_name_to_range = ranges
    mine.signature = mine.deserialize_signature(stored.graph_module.signature)
    mine.deserialize_graph(inputs_only)
    mine.graph.erase_node(mine.graph.output_node())
    return mine, other, graph


def compare_node_by_node(mine: Any, other: Any) -> None:
    found, expected = nodes_of(mine.graph), nodes_of(other.graph)[:-1]
    assert [n[:3] for n in found] == [n[:3] for n in expected]
    for node, wanted in zip(mine.graph.nodes, other.graph.nodes, strict=False):
        assert str(node.args) == str(wanted.args)
        assert str(node.kwargs) == str(wanted.kwargs)
        keys = [k for k in wanted.meta if k != "unbacked_bindings"]
        assert list(node.meta) == keys, node
        for key in keys:
            expected = with_the_storage_of(node.meta[key], wanted.meta[key])
            assert described(node.meta[key]) == described(expected), (node, key)
    mine.graph.lint()
    assert len(mine.graph.nodes) == len(list(mine.graph.nodes))


def test_node_by_node(opened: tuple[Any, Any, Any]) -> None:
    mine, other, graph = opened
    for stored in graph.nodes:
        assert mine.deserialize_node(stored, mine.deserialize_operator(stored.target)) is None
    compare_node_by_node(mine, other)
    for output in graph.outputs:
        found, expected = (r.deserialize_graph_output(output) for r in (mine, other))
        assert str(found) == str(expected)


def test_nodes_made_by_the_caller(opened: tuple[Any, Any, Any]) -> None:
    """Parts of nodes, put together with torch's Graph as torch's deserialize_node does."""
    mine, other, graph = opened
    for stored in graph.nodes:
        target = mine.deserialize_operator(stored.target)
        assert target is other.deserialize_operator(stored.target)
        kwargs: dict[str, Any] = {}
        if target in theirs._SYM_OPS or target is aten.item.default:
            args = mine.deserialize_sym_op_inputs(stored.inputs)
        elif isinstance(target, torch._ops.HigherOrderOperator):
            args, kwargs = mine.deserialize_hoo_inputs(stored.inputs)
        else:
            args, kwargs = mine.deserialize_inputs(target, stored)
        name = stored.name or None
        node = mine.graph.create_node("call_function", target, args, kwargs, name)
        if target in theirs._SYM_OPS or target is aten.item.default:
            mine.deserialize_sym_op_outputs(stored, node)
        else:
            mine.deserialize_outputs(stored, node)
        metadata = mine.deserialize_metadata(stored.metadata)
        assert described(metadata) == described(other.deserialize_metadata(stored.metadata))
        node.meta.update(metadata)
        node.meta.setdefault("nn_module_stack", {})
        for argument in args:
            if isinstance(argument, torch.fx.Node) and argument.op == "get_attr":
                argument.meta.update(metadata)
    compare_node_by_node(mine, other)


def test_results_taken_apart(opened: tuple[Any, Any, Any]) -> None:
    mine, other, graph = opened
    by_target = {n.target: n for n in graph.nodes}
    stored = by_target["torch.ops.aten.topk.default"]
    for generate in ("deserialize_multiple_outputs", "generate_getitems", "generate_getitem"):
        with mine.save_graph_module():
            empty = mine.deserialize_graph(tables_of(graph))
            empty.erase_node(empty.output_node())
            x = mine.graph.placeholder("input_of_mine")
            node = mine.graph.call_function(aten.topk.default, (x, 2))
            metadata, values = mine.deserialize_metadata(stored.metadata), []
            if generate == "deserialize_multiple_outputs":
                mine.deserialize_multiple_outputs(stored, node)
                values = list(node.meta["val"])
            elif generate == "generate_getitems":
                mine.generate_getitems(values, node, stored.outputs, metadata)
            else:
                for i, result in enumerate(stored.outputs):
                    mine.generate_getitem(values, node, result.value, i, metadata)
            names = [n.name for n in mine.graph.nodes]
            assert names == [
                "input_of_mine",
                "topk_default",
                *(o.value.name for o in stored.outputs),
            ]
            last = next(reversed(mine.graph.nodes))
            wanted = other.serialized_name_to_node[stored.outputs[1].value.name]
            assert described(last.meta) == described(wanted.meta)
            assert described(values) == described(list(wanted.args[0].meta["val"]))
            assert not mine.unbacked_symbols
    assert "input_of_mine" not in [n.name for n in mine.graph.nodes]


def tables_of(graph: Any) -> Any:
    """A graph without nodes that has the tables of another."""
    return schema.Graph(
        inputs=[],
        outputs=[],
        nodes=[],
        tensor_values=graph.tensor_values,
        sym_int_values=graph.sym_int_values,
        sym_bool_values=graph.sym_bool_values,
    )


def test_the_signature_and_module_calls() -> None:
    mine, other, stored = both(mixed_program(decomposed=True))
    signature, calls = stored.graph_module.signature, stored.graph_module.module_call_graph

    def same(name: str, value: Any) -> None:
        found, expected = (getattr(reader, name)(value) for reader in (mine, other))
        assert described(found) == described(expected), name
        assert type(found) is type(expected)

    same("deserialize_signature", signature)
    for spec in signature.input_specs:
        same("deserialize_input_spec", spec)
    for spec in signature.output_specs:
        same("deserialize_output_spec", spec)
        if spec.type == "user_output":
            same("deserialize_argument_spec", spec.user_output.arg)
    same("deserialize_module_call_graph", calls)
    same("deserialize_module_call_signature", calls[0].signature)


def test_values() -> None:
    mine, other, stored = both(mixed_program())
    graph = stored.graph_module.graph

    def same(name: str, value: Any) -> None:
        found, expected = (getattr(reader, name)(value) for reader in (mine, other))
        expected = with_the_storage_of(found, expected)
        assert described(found) == described(expected), (name, value)

    for value in graph.tensor_values.values():
        same("deserialize_tensor_meta", value)
    for value in graph.sym_int_values.values():
        same("deserialize_sym_int", value)
    for value in graph.sym_bool_values.values():
        same("deserialize_sym_bool", value)
    same("deserialize_sym_int", schema.SymInt.create(as_int=3))
    same("deserialize_sym_float", schema.SymFloat.create(as_float=0.5))
    same("deserialize_sym_bool", schema.SymBool.create(as_bool=True))
    number = schema.SymExpr("ToFloat(s77)", hint=schema.SymExprHint.create(as_float=6.0))
    for reader in (mine, other):
        made = reader.deserialize_sym_float(schema.SymFloat.create(as_expr=number))
        assert (str(made.node.expr), made.node.hint) == ("ToFloat(s77)", 6.0)
        assert str(reader._parse_sym_expr("2*s77 + 1")) == "2*s77 + 1"
        for constant in (
            schema.ConstantValue.create(as_int=3),
            schema.ConstantValue.create(as_float=0.5),
            schema.ConstantValue.create(as_string="text"),
            schema.ConstantValue.create(as_bool=True),
            schema.ConstantValue.create(as_none=True),
        ):
            expected = None if constant.type == "as_none" else constant.value
            assert reader.deserialize_constant_input(constant) == expected
        custom = schema.CustomObjArgument("name", "class")
        assert vars(reader.deserialize_script_obj_meta(custom)) == {
            "name": "name",
            "class_fqn": "class",
            "fake_val": None,
        }
        assert reader._deserialize_from_node(None) is None
        with pytest.raises(AssertionError, match="expected list"):
            reader._deserialize_from_node({})


def test_arguments() -> None:
    mine, other, stored = both(mixed_program())
    seen = set()

    def same(argument: Any) -> None:
        seen.add(str(argument.type))
        if argument.type == "as_graph":  # adds nodes
            return
        found, expected = (reader.deserialize_input(argument) for reader in (mine, other))
        assert str(found) == str(expected)

    for node in stored.graph_module.graph.nodes:
        for named in node.inputs:
            same(named.arg)
    create = schema.Argument.create
    for argument in (
        create(as_none=True),
        create(as_complex=schema.ComplexValue(1.0, 2.0)),
        create(as_device=schema.Device("cpu")),
        create(as_int_lists=[[1, 2], [3]]),
        create(as_float_lists=[[1.0], []]),
        create(as_string_to_argument={"a": create(as_int=1)}),
        create(as_optional_tensors=[schema.OptionalTensorArgument.create(as_none=True)]),
        create(as_operator="torch.ops.aten.sin.default"),
        create(as_scalar_type=schema.ScalarType.FLOAT),
        create(as_layout=schema.Layout.Strided),
        create(as_memory_format=schema.MemoryFormat.ChannelsLast),
        create(as_bools=[True]),
        create(as_floats=[1.0]),
        create(as_strings=["a"]),
    ):
        same(argument)
    assert {"as_tensor", "as_sym_ints", "as_sym_int", "as_int", "as_graph"} <= seen
    for argument in (
        schema.SymIntArgument.create(as_int=3),
        schema.SymFloatArgument.create(as_float=0.5),
        schema.SymBoolArgument.create(as_bool=False),
    ):
        found = mine.deserialize_sym_argument(argument)
        assert found == other.deserialize_sym_argument(argument) == argument.value


def test_operators() -> None:
    mine, other = ours.GraphModuleDeserializer(), theirs.GraphModuleDeserializer()
    for text in (
        "torch.ops.aten.add.Tensor",
        "torch.ops.higher_order.cond",
        "_operator.add",
        "math.trunc",
        "torch.sym_max",
        "torch.ops.nowhere.there.default",
        "nothing",
    ):
        assert mine.deserialize_operator(text) == other.deserialize_operator(text), text
    # In torch any attribute of torch: nothing but operators is a target here.
    assert mine.deserialize_operator("torch.serialization.os.system") == (
        "torch.serialization.os.system"
    )
    with pytest.raises(theirs.SerializeError, match="no extension is registered"):
        mine.deserialize_extension_operator("#nowhere:name")


def test_damage() -> None:
    mine = ours.GraphModuleDeserializer()
    create = schema.Argument.create
    with pytest.raises(theirs.SerializeError, match="the graph does not have a value named 'x'"):
        mine.deserialize_input(create(as_tensor=schema.TensorArgument("x")))
    with pytest.raises(theirs.SerializeError, match="Unable to deserialize output"):
        mine.deserialize_graph_output(create(as_string="text"))
    with pytest.raises(theirs.SerializeError, match="Unknown symbolic argument"):
        mine.deserialize_sym_argument(schema.TensorArgument("x"))
    with pytest.raises(AssertionError, match="expected int"):
        mine.deserialize_sym_int(schema.SymInt.create(as_int="3"))
    hint = schema.SymExprHint.create(as_float=1.0)
    with pytest.raises(AssertionError, match="hint type"):
        mine.deserialize_sym_int(schema.SymInt.create(as_expr=schema.SymExpr("s0", hint=hint)))
    with pytest.raises(theirs.SerializeError, match="no value named 'y'"):
        mine.sync_fx_node("y", mine.graph.placeholder("y"))
    with pytest.raises(TypeError):
        mine.deserialize_input(object())
    node = schema.Node(target="nothing", inputs=[], outputs=[], metadata={})
    with pytest.raises(theirs.SerializeError, match="failed to resolve nothing"):
        mine.deserialize_node(node, mine.deserialize_operator("nothing"))
    graph = schema.Graph(
        inputs=[], outputs=[], nodes=[node], tensor_values={}, sym_int_values={}, sym_bool_values={}
    )
    with pytest.raises(theirs.SerializeError, match="Failed deserializing node"):
        mine.deserialize_graph(graph)
    with pytest.raises(ValueError, match="inside"), mine.save_graph_module():
        raise ValueError("inside")
    outer = mine.graph
    with mine.save_graph_module():
        assert mine.graph is not outer
    assert mine.graph is outer


def test_a_node_has_one_name_and_value() -> None:
    mine, other, stored = both(mixed_program())
    name = stored.graph_module.graph.inputs[0].as_tensor.name
    for reader in (mine, other):
        node = reader.serialized_name_to_node[name]
        with pytest.raises(AssertionError, match="already has 'val'"):
            reader.sync_fx_node("another", node)
        with pytest.raises(theirs.SerializeError, match="already been deserialized"):
            reader.sync_fx_node(name, reader.graph.placeholder("other"))


def test_lazy_map() -> None:
    for module in (ours, theirs):
        values = module.LazyMap()
        calls: list[int] = []
        values["a"] = lambda calls=calls: calls.append(1) or "made"
        assert "lambda" in repr(values)
        assert values["a"] == values["a"] == "made"
        assert calls == [1]
        assert values.evaluated == {"a"}
        with pytest.raises(KeyError):
            values["b"]


def test_helpers() -> None:
    for module in (ours, theirs):
        assert module._symbol_index(sympy.Symbol("u12"), SymT.UNBACKED_INT) == 12
        assert module._reverse_map(theirs._TORCH_TO_SERIALIZE_LAYOUT)[1] == torch.sparse_coo
        assert module.deserialize_torch_artifact(b"") == {}
        state = {"a": torch.ones(2)}
        assert module.deserialize_torch_artifact(state) is state
        read = module.deserialize_torch_artifact(module.serialize_torch_artifact(state))
        assert torch.equal(read["a"], state["a"])
        assert module.DEFAULT_PICKLE_PROTOCOL == 2
        assert module.ST_DELIMITER == ";"


def test_nothing_is_left_behind() -> None:
    made = export(nn.Linear(2, 2), (torch.ones(1, 2),))  # symbols are held by caches of torch's
    stored, constants, ranges = stored_of(made)
    broken = stored_of(made)[0].graph_module
    broken.graph.nodes[0].target = "nothing"

    def read() -> None:
        reader = ours.GraphModuleDeserializer()
        reader.deserialize(stored.graph_module, {}, constants, None, ranges)
        with pytest.raises(theirs.SerializeError):
            ours.GraphModuleDeserializer().deserialize(broken, {}, constants)
        with pytest.raises(theirs.SerializeError), reader.save_graph_module():
            reader.deserialize_graph(broken.graph)
        reader.deserialize_input(schema.Argument.create(as_ints=[1, 2]))

    check_no_blocks_leak(read, 100)


def test_graphs_go_with_their_reader() -> None:
    # Symbols are held by caches of torch's.
    mine, _, _ = both(export(nn.Linear(2, 2), (torch.ones(1, 2),)))
    graph = weakref.ref(mine.graph)
    del mine
    gc.collect()
    assert graph() is None
