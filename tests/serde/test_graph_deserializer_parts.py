"""GraphModuleDeserializer part by part: mistakes, state between calls, graphs of the caller's."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch._export.serde import schema
from torch._export.serde import serialize as theirs
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import export
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.functions import FloorDiv
from torch.utils._sympy.value_ranges import ValueRanges

from fxpress import serialize as ours
from tests.support.memory import check_no_blocks_leak

aten = torch.ops.aten
argument = schema.Argument.create
X = schema.TensorArgument("x")
SIN = "torch.ops.aten.sin.default"


def size(value: int) -> Any:
    return schema.SymInt.create(as_int=value)


def symbol(text: str, hint: int | None = None) -> Any:
    stored = None if hint is None else schema.SymExprHint.create(as_int=hint)
    return schema.SymInt.create(as_expr=schema.SymExpr(text, hint=stored))


def tensor(*sizes: Any, device: Any = None) -> Any:
    return schema.TensorMeta(
        dtype=schema.ScalarType.FLOAT,
        sizes=[size(s) if isinstance(s, int) else s for s in sizes],
        requires_grad=False,
        device=device or schema.Device("cpu"),
        strides=[size(1) for _ in sizes],
        storage_offset=size(0),
        layout=schema.Layout.Strided,
    )


def node(inputs: list[str], outputs: list[Any], name: str | None = None) -> Any:
    named = [
        schema.NamedArgument("self", argument(as_tensor=schema.TensorArgument(i))) for i in inputs
    ]
    return schema.Node(SIN, named, outputs, {}, name=name)


def result(name: str) -> Any:
    return argument(as_tensor=schema.TensorArgument(name))


def graph(nodes: list[Any], names: list[str], outputs: list[Any] | None = None) -> Any:
    """A graph with the input x, in whose tables the names are tensors."""
    return schema.Graph(
        inputs=[argument(as_tensor=X)],
        outputs=outputs or [],
        nodes=nodes,
        tensor_values={name: tensor(2) for name in ("x", *names)},
        sym_int_values={},
        sym_bool_values={},
    )


@pytest.fixture
def open_reader() -> Any:
    """A reader whose open graph has the input x; its tables know y, z and w as well."""
    reader = ours.GraphModuleDeserializer()
    reader.deserialize_graph(graph([], ["y", "z", "w"]))
    reader.graph.erase_node(reader.graph.output_node())
    return reader


WRONG = {
    "deserialize_input": schema.SymIntArgument.create(as_name="s77"),
    "deserialize_tensor_meta": X,
    "deserialize_graph": schema.GraphArgument("name", graph([], [])),
    "deserialize_signature": X,
    "deserialize_input_spec": schema.ConstantValue.create(as_string="x" * 1000),
    "deserialize_output_spec": argument(as_none=True),
    "deserialize_argument_spec": schema.NamedArgument("x", argument(as_none=True)),
    "deserialize_module_call_signature": tensor(2),
}


@pytest.mark.parametrize("method", WRONG)
def test_parts_of_another_class(method: str) -> None:
    with pytest.raises(TypeError, match=r"expected a \S+, got"):
        getattr(ours.GraphModuleDeserializer(), method)(WRONG[method])


def test_a_node_of_another_class() -> None:
    named = schema.NamedArgument("x", argument(as_none=True))
    with pytest.raises((TypeError, AttributeError)):
        ours.GraphModuleDeserializer().deserialize_node(named, aten.sin.default)


def test_nodes_of_other_graphs_are_kept() -> None:
    reader = ours.GraphModuleDeserializer()
    other = torch.fx.Graph()
    with pytest.raises(theirs.SerializeError, match="no value named"):
        reader.sync_fx_node("x", other.placeholder("given"))
    del other
    gc.collect()
    assert reader.serialized_name_to_node["x"].name == "x"


def test_reading_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ours.GraphModuleDeserializer()

    class Handler(theirs.ExtensionHandler):
        @classmethod
        def namespace(cls) -> str:
            return "again"

        @classmethod
        def from_op_name(cls, name: str) -> Any:
            return reader.deserialize_input(argument(as_ints=[1]))

    monkeypatch.setitem(theirs._deserialization_registry, "again", Handler)
    with pytest.raises(theirs.SerializeError, match="in use by another call"):
        reader.deserialize_graph(graph([schema.Node("#again:op", [], [], {})], []))
    assert reader.deserialize_input(argument(as_ints=[1])) == [1]


def test_a_whole_graph_beside_another() -> None:
    made = export(nn.Linear(2, 2), (torch.ones(1, 2),))
    written = theirs.serialize(made).exported_program
    stored = theirs._bytes_to_dataclass(schema.ExportedProgram, written).graph_module
    for module in (ours, theirs):
        reader = module.GraphModuleDeserializer()
        reader.deserialize(stored, {}, {})
        outer = reader.graph
        with reader.save_graph_module():
            reader.deserialize(stored, {}, {})
            assert [n.name for n in reader.graph.nodes] == [n.name for n in outer.nodes]
        assert reader.graph is outer
        assert reader.unbacked_symbols == set()
        assert set(reader.serialized_name_to_node) >= {"input", "linear"}


def test_a_broken_graph_leaves_the_outer_one_open(open_reader: Any) -> None:
    outer = open_reader.unbacked_symbols
    broken = graph([schema.Node("nothing", [], [], {})], [])
    with pytest.raises(theirs.SerializeError), open_reader.save_graph_module():
        open_reader.deserialize_graph(broken)
    assert open_reader.unbacked_symbols is outer
    holder = schema.NamedArgument("body", argument(as_graph=schema.GraphArgument("body", broken)))
    cond = schema.Node("torch.ops.higher_order.cond", [holder], [], {})
    with pytest.raises(theirs.SerializeError):
        open_reader.deserialize_node(cond, torch.ops.higher_order.cond)
    assert open_reader.unbacked_symbols is outer
    open_reader.deserialize_node(node(["x"], [result("y")]), aten.sin.default)
    open_reader.graph.lint()


def by_hand(module: Any) -> Any:
    """A reader that reads parts from the start; torch's needs more to be set."""
    reader = module.GraphModuleDeserializer()
    reader.shape_env = ShapeEnv()
    reader.fake_tensor_mode = FakeTensorMode(
        allow_fallback_kernels=False, allow_non_fake_inputs=True, shape_env=reader.shape_env
    )
    reader.symbol_name_to_symbol = {}
    reader.symbol_name_to_range = {}
    reader.unbacked_symbols = set()
    if module is theirs:
        reader.sympy_functions = {}
        reader.constants, reader.signature = {}, None
    return reader


def test_symbols_that_were_met_before_their_graph() -> None:
    """The node that defines a symbol is marked, whenever the symbol was read."""
    u0 = symbol("Symbol('u0', integer=True)")
    stored = graph([], [], [])
    stored.nodes = [
        schema.Node(
            "torch.ops.aten.item.default",
            [schema.NamedArgument("self", argument(as_tensor=X))],
            [argument(as_sym_int=schema.SymIntArgument.create(as_name="item"))],
            {},
        )
    ]
    stored.sym_int_values = {"item": u0}
    bindings = []
    for module in (ours, theirs):
        reader = by_hand(module)
        reader.deserialize_sym_int(u0)
        assert {str(s) for s in reader.unbacked_symbols} == {"u0"}
        reader.deserialize_graph(stored)
        (item,) = reader.graph.find_nodes(op="call_function", target=aten.item.default)
        bindings.append(str(item.meta["unbacked_bindings"]))
        assert reader.unbacked_symbols == set()
        # Met again in a graph without such a node: nobody defines it.
        with pytest.raises((theirs.SerializeError, AssertionError), match="symbols"):
            other = by_hand(module)
            other.deserialize_sym_int(u0)
            other.deserialize_graph(graph([], []))
    assert bindings[0] == bindings[1]


def test_what_can_be_set() -> None:
    reader = ours.GraphModuleDeserializer()
    before = reader.deserialize_tensor_meta(tensor(2))
    mode = FakeTensorMode(shape_env=ShapeEnv())
    reader.fake_tensor_mode = mode
    assert reader.shape_env is mode.shape_env
    made = reader.deserialize_tensor_meta(tensor(2))
    assert made.fake_mode is mode
    assert before.fake_mode is not mode
    s0 = symbol("Symbol('s0', integer=True, positive=True)", 4)
    first = reader.deserialize_sym_int(s0).node.expr
    reader.symbol_name_to_range = {"s0": ValueRanges(3, 9)}
    reader.deserialize_tensor_meta(tensor(s0))
    assert mode.shape_env.bound_sympy(first) == ValueRanges(3, 9)
    known = sympy.Symbol("s0", integer=True, positive=True)
    reader.symbol_name_to_symbol = {"s0": known}
    assert reader.deserialize_sym_int(s0).node.expr is known
    reader.shape_env = ShapeEnv()
    assert reader.deserialize_sym_int(s0).node.shape_env is reader.shape_env


def test_constants_that_were_set() -> None:
    literal = argument(as_custom_obj=schema.CustomObjArgument("held", "class"))
    held = object()
    for module in (ours, theirs):
        reader = by_hand(module)
        reader.constants = {"held": held}
        assert reader.deserialize_input(literal) is held
        assert reader.constants == {"held": held}


def test_values_of_a_graph_are_those_of_it(open_reader: Any) -> None:
    values, nodes = open_reader.serialized_name_to_meta, open_reader.serialized_name_to_node
    with open_reader.save_graph_module():
        within = open_reader.serialized_name_to_meta
        assert not within.map
        assert not open_reader.serialized_name_to_node
        assert tuple(values["y"].shape) == (2,)
        assert nodes["x"].op == "placeholder"
        open_reader.deserialize_graph(graph([], ["only_here"]))
        within = open_reader.serialized_name_to_meta
    with pytest.raises(theirs.SerializeError, match="is not open"):
        within["only_here"]
    with FakeTensorMode():
        assert values["z"].fake_mode is open_reader.fake_tensor_mode
    assert repr(nodes) == "{'x': x}"
    with pytest.raises(KeyError):
        nodes["nowhere"]
    with pytest.raises(TypeError):
        nodes["x"] = None


def test_names_that_the_caller_takes(open_reader: Any) -> None:
    """Names that the caller uses are numbered as by torch's Graph."""
    expected = torch.fx.Graph()
    x = expected.placeholder("x")

    def both(name: str) -> None:
        for target in (open_reader.graph, expected):
            first = next(iter(target.nodes))
            made = target.call_function(aten.sin.default, (first,))
            made._rename(name)
            target._graph_namespace.create_name("reserved", None)

    def same(stored_name: str, known_as: str) -> None:
        stored = node(["x"], [result(known_as)], name=stored_name)
        open_reader.deserialize_node(stored, aten.sin.default)
        made = next(reversed(open_reader.graph.nodes))
        wanted = expected.create_node("call_function", aten.sin.default, (x,), name=stored_name)
        assert (
            open_reader.graph._graph_namespace._obj_to_name[made]
            == (expected._graph_namespace._obj_to_name[wanted])
        )

    both("foo")
    same("foo", "y")
    both("bar")
    same("sin_default", "z")
    same("reserved", "w")
    used = [g._graph_namespace._used_names for g in (open_reader.graph, expected)]
    assert set(used[0]) - {"output"} == set(used[1])


def test_the_length_after_an_error(open_reader: Any) -> None:
    with pytest.raises(theirs.SerializeError, match="no value named"):
        open_reader.deserialize_node(node(["x"], [result("nowhere")]), aten.sin.default)
    assert len(open_reader.graph.nodes) == len(list(open_reader.graph.nodes)) == 2


def test_where_the_caller_wants_nodes(open_reader: Any) -> None:
    open_reader.deserialize_node(node(["x"], [result("y")]), aten.sin.default)
    last = next(reversed(open_reader.graph.nodes))
    with open_reader.graph.inserting_before(last):
        open_reader.deserialize_node(node(["x"], [result("z")]), aten.sin.default)
    open_reader.deserialize_node(node(["z"], [result("w")]), aten.sin.default)
    assert [n.name for n in open_reader.graph.nodes] == ["x", "z", "y", "w"]
    open_reader.graph.lint()


def test_parts_are_not_kept(open_reader: Any) -> None:
    def read() -> None:
        open_reader.deserialize_input(argument(as_strings=["a", "b"]))
        open_reader.deserialize_metadata({"nn_module_stack": "a,b,c"})
        open_reader.deserialize_tensor_meta(tensor(3))

    check_no_blocks_leak(read, 100)


def test_a_known_name_comes_first() -> None:
    """Both raise the error about a known name first, also if the node has a value."""
    for module in (ours, theirs):
        reader = by_hand(module)
        reader.deserialize_graph(graph([], []))
        known = reader.serialized_name_to_node["x"]
        with pytest.raises(theirs.SerializeError, match="already been deserialized"):
            reader.sync_fx_node("x", known)
        with pytest.raises(AssertionError, match="already has 'val'"):
            reader.sync_fx_node("other", known)


def test_types_of_arguments() -> None:
    readers = by_hand(ours), by_hand(theirs)
    for stored in (
        argument(as_ints=[1, 2]),
        argument(as_int_lists=[[1], [2, 3]]),
        argument(as_string_to_argument={"a": argument(as_ints=[1])}),
        argument(as_strings=["a"]),
        argument(as_sym_ints=[schema.SymIntArgument.create(as_int=1)]),
        argument(as_floats=[1, 2.5]),
    ):
        found, expected = (reader.deserialize_input(stored) for reader in readers)
        assert found == expected
        assert type(found) is type(expected), stored
        if isinstance(found, list):
            found.append(3)
    inputs = [schema.NamedArgument("", argument(as_ints=[1]), schema.ArgumentKind.POSITIONAL)]
    found, expected = (reader.deserialize_hoo_inputs(inputs) for reader in readers)
    assert found == expected
    assert type(found[0][0]) is type(expected[0][0]) is list
    for value in (schema.ConstantValue.create(as_float=1), schema.ConstantValue.create(as_int=1)):
        found, expected = (reader.deserialize_constant_input(value) for reader in readers)
        assert (found, type(found)) == (expected, type(expected))
    for reader in readers:
        with pytest.raises(AssertionError, match="expected"):
            reader.deserialize_sym_int(schema.SymInt.create(as_int=True))


def test_expressions_of_sympy() -> None:
    s9 = sympy.Symbol("s9", integer=True, positive=True)
    for reader in (by_hand(ours), by_hand(theirs)):
        assert reader._parse_sym_expr(s9) == s9
        halved = FloorDiv(s9, 2)
        assert reader._parse_sym_expr(halved) == halved


def test_a_node_whose_results_are_none(open_reader: Any) -> None:
    for reader in (open_reader, by_hand(theirs)):
        made = reader.graph.call_function(aten.sin.default, (reader.graph.placeholder("given"),))
        reader.deserialize_multiple_outputs(node([], []), made)
        assert made.meta["val"] == ()
        assert reader.serialized_name_to_node[made.name] is made


def test_results_of_another_kind(open_reader: Any) -> None:
    for reader in (open_reader, by_hand(theirs)):
        made = reader.graph.placeholder("given")
        with pytest.raises(NotImplementedError):
            reader.generate_getitems([], made, [argument(as_device=schema.Device("cpu"))], {})
        with pytest.raises(AssertionError):
            reader.generate_getitem([], made, "text", 0, {})


@pytest.mark.parametrize("index", [10**30, -2])
def test_devices_that_cannot_be(index: int) -> None:
    reader = ours.GraphModuleDeserializer()
    assert reader.deserialize_input(argument(as_device=schema.Device("cuda"))) == torch.device(
        "cuda"
    )
    with pytest.raises((theirs.SerializeError, RuntimeError)):
        reader.deserialize_input(argument(as_device=schema.Device("cuda", index)))
    found = reader.deserialize_input(argument(as_device=schema.Device("cuda", 1)))
    assert found == torch.device("cuda", 1)


def test_an_extension_that_nobody_registered() -> None:
    for module, error in ((ours, ours.SerializeError), (theirs, KeyError)):
        with pytest.raises(error, match="nowhere"):
            module.GraphModuleDeserializer().deserialize_operator("#nowhere:name")


def test_arguments_that_are_no_constants() -> None:
    given = argument(as_device=schema.Device("cpu"))
    for module in (ours, theirs):
        with pytest.raises(theirs.SerializeError, match="Unhandled constant argument"):
            module.GraphModuleDeserializer().deserialize_constant_input(given)


def test_numbers_of_another_class() -> None:
    given = schema.SymIntArgument.create(as_name="s77")
    for module, error in ((ours, theirs.SerializeError), (theirs, AssertionError)):
        with pytest.raises(error, match=r"as_name|as_expr"):
            module.GraphModuleDeserializer().deserialize_sym_int(given)


def test_one_result_that_is_no_list() -> None:
    stored = schema.Node(SIN, [], [argument(as_int=1)], {})
    for module in (ours, theirs):
        with pytest.raises(AssertionError, match="expected list, got int"):
            module.GraphModuleDeserializer().deserialize_multiple_outputs(stored, None)


def test_functions_that_are_no_operators(open_reader: Any) -> None:
    """Files cannot name them; callers of parts may give any function."""
    open_reader.deserialize_node(node([], [argument(as_none=True)]), torch.nn.functional.relu)
    other = theirs.GraphModuleDeserializer()
    other.graph = torch.fx.Graph()
    other.deserialize_node(node([], [argument(as_none=True)]), torch.nn.functional.relu)
    names = [[n.name for n in reader.graph.nodes][-1] for reader in (open_reader, other)]
    assert names[0] == names[1]
