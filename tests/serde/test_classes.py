"""The classes and helpers around `serialize` and `deserialize`, against torch's."""

from __future__ import annotations

import inspect
import logging
import operator
from typing import Any

import pytest
import sympy
import torch
from torch import nn
from torch._export.serde import schema
from torch._export.serde import serialize as theirs
from torch.export import Dim, ExportedProgram, export
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from fxpress import serialize as ours
from fxpress.serialize import SerializeError
from tests.support.deserialized import assert_same_program
from tests.support.reading_cases import edited, node_of, top
from tests.support.serialized import typed


def dynamic() -> ExportedProgram:
    rows = {0: Dim("rows", min=2, max=64)}
    return export(nn.Linear(4, 2), (torch.randn(3, 4),), dynamic_shapes=(rows,), strict=False)


NAMES = (
    "ExportedProgramSerializer",
    "ExportedProgramDeserializer",
    "serialize",
    "deserialize",
    "canonicalize",
    "register_extension",
    "serialize_tensor_meta",
    "serialize_range_constraints",
    "deserialize_device",
    "deserialize_size",
    "deserialize_stride",
    "deserialize_scalar_type",
    "deserialize_storage_offset",
    "serialize_sym_int",
    "serialize_sym_float",
    "serialize_sym_bool",
    "_print_sympy",
    "_sympy_int_to_int",
    "_int_to_sympy_int",
    "_get_schema_from_target",
    "_registered_extension_types",
)


@pytest.mark.parametrize("name", NAMES)
def test_signatures(name: str) -> None:
    mine, other = (inspect.signature(getattr(m, name)).parameters for m in (ours, theirs))
    assert list(mine)[: len(other)] == list(other)


def test_tables_are_torchs() -> None:
    for name in (
        "_TORCH_TO_SERIALIZE_DTYPE",
        "_SERIALIZE_TO_TORCH_DTYPE",
        "_TORCH_TO_SERIALIZE_LAYOUT",
        "_SERIALIZE_TO_TORCH_LAYOUT",
        "_TORCH_TO_SERIALIZE_MEMORY_FORMAT",
        "_SERIALIZE_TO_TORCH_MEMORY_FORMAT",
        "_SYM_OPS",
        "_serialization_registry",
        "_deserialization_registry",
        "_SerializedProgram",
        "ExtensionHandler",
    ):
        assert getattr(ours, name) is getattr(theirs, name)


# ---- programs as objects ------------------------------------------------------------------------


def test_programs_as_objects() -> None:
    program = dynamic()
    mine = ours.ExportedProgramSerializer({"other": 3}, 2).serialize(program)
    other = theirs.ExportedProgramSerializer({"other": 3}, 2).serialize(program)
    assert type(mine) is type(other)
    assert typed(mine) == typed(other)
    assert mine.exported_program.opset_version == other.exported_program.opset_version
    parts = (mine.exported_program, mine.state_dict, mine.constants, mine.example_inputs)
    read = ours.ExportedProgramDeserializer().deserialize(*parts)
    assert_same_program(read, theirs.ExportedProgramDeserializer().deserialize(*parts))
    assert_same_program(
        ours.ExportedProgramDeserializer().deserialize(
            other.exported_program, program.state_dict, program.constants
        ),
        theirs.ExportedProgramDeserializer().deserialize(
            other.exported_program, program.state_dict, program.constants
        ),
    )


def test_parts_can_be_left_out() -> None:
    options = {f"serialize_{p}": False for p in ("state_dict", "constants", "example_inputs")}
    written = ours.ExportedProgramSerializer().serialize(dynamic(), **options)
    assert written.state_dict == written.constants == written.example_inputs == b""


def test_versions() -> None:
    for module in (ours, theirs):
        assert module.ExportedProgramSerializer().opset_version["aten"] > 0
        versions = module.ExportedProgramDeserializer({"aten": 1, "x": 2}).expected_opset_version
        assert versions == {"aten": 1, "x": 2}


def test_what_is_not_a_program() -> None:
    written = ours.ExportedProgramSerializer().serialize(dynamic())
    for module in (ours, theirs):
        with pytest.raises(AssertionError, match="expected ExportedProgram"):
            module.ExportedProgramDeserializer().deserialize(b"", {}, {})
        written.exported_program.schema_version = schema.SchemaVersion(major=9999, minor=0)
        reader = module.ExportedProgramDeserializer()
        with pytest.raises(SerializeError, match="does not match our current schema version"):
            reader.deserialize(written.exported_program, {}, {})
        reader.deserialize(
            written.exported_program,
            written.state_dict,
            written.constants,
            _unsafe_skip_version_check=True,
        )


def test_the_classes_are_final() -> None:
    for cls in (ours.ExportedProgramSerializer, ours.ExportedProgramDeserializer):
        with pytest.raises(TypeError, match="not an acceptable base type"):
            type("Other", (cls,), {})


def test_z150_ranges_by_symbol(caplog: pytest.LogCaptureFixture) -> None:
    symbol = sympy.Symbol("s0")
    limits = ValueRanges(2, 3)
    with caplog.at_level(logging.WARNING, "fxpress"):
        found = ours.ExportedProgramDeserializer().deserialize_range_constraints(
            {"s0": limits, "s1": limits}, {"s0": symbol}
        )
    assert found == {symbol: limits}
    assert "Symbol s1 did not appear" in caplog.text


# ---- extensions ---------------------------------------------------------------------------------


class Operator:
    """An operator that is not torch's."""

    __name__ = "operator"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.aten.relu.default(x)  # type: ignore[no-any-return]


OPERATOR = Operator()


class Handler(theirs.ExtensionHandler):  # type: ignore[misc]
    @classmethod
    def namespace(cls) -> str:
        return "fxpress_tests"

    @classmethod
    def to_op_name(cls, op: Any) -> str:
        return "operator"

    @classmethod
    def from_op_name(cls, name: str) -> Any:
        assert name == "operator"
        return OPERATOR

    @classmethod
    def op_schema(cls, op: Any) -> Any:
        return torch.ops.aten.relu.default._schema


@pytest.fixture
def registered() -> Any:
    ours.register_extension(Operator, Handler)
    yield
    del theirs._serialization_registry[Operator]
    del theirs._deserialization_registry["fxpress_tests"]


def test_z152_registering(registered: None) -> None:
    assert Operator in theirs._registered_extension_types()
    assert ours._registered_extension_types() == theirs._registered_extension_types()
    assert ours._get_schema_from_target(OPERATOR) is torch.ops.aten.relu.default._schema
    for module in (ours, theirs):
        with pytest.raises(AssertionError, match="already registered"):
            module.register_extension(Operator, Handler)
        with pytest.raises(AssertionError, match="already registered"):
            module.register_extension(type("Other", (), {}), Handler)
        with pytest.raises(AssertionError, match="Expected ExtensionHandler"):
            module.register_extension(type("Other", (), {}), int)
        with pytest.raises(AssertionError, match="should not start with"):
            module.register_extension(torch.Tensor, Handler)
        with pytest.raises(AssertionError, match="must be a type"):
            module.register_extension("Other", Handler)


def test_an_extension_as_a_source_function(registered: None) -> None:
    def edit(stored: Any) -> None:
        node_of(stored, "topk")["metadata"]["source_fn_stack"] = "a,#fxpress_tests:operator"

    written = edited(ours.serialize(top()), edit)
    for module in (ours, theirs):
        nodes = module.deserialize(written).graph.nodes
        stack = next(n for n in nodes if "topk" in n.name).meta["source_fn_stack"]
        assert stack == [("a", OPERATOR)]


def test_z56_an_extension_in_a_program(registered: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._export.verifier import Verifier

    class Lenient(Verifier):
        dialect = "FXPRESS_TESTS"

        def allowed_op_types(self) -> tuple[type[Any], ...]:
            return (*super().allowed_op_types(), Operator)

        def check_additional(self, gm: Any) -> None:
            pass

    program = export(nn.ReLU(), (torch.randn(3),), strict=False)
    node = next(n for n in program.graph.nodes if n.op == "call_function")
    node.target = OPERATOR
    program._verifiers = [Lenient]
    written = ours.serialize(program)
    assert written == theirs.serialize(program)
    read = ours.deserialize(written)
    assert next(n for n in read.graph.nodes if n.op == "call_function").target is OPERATOR
    assert_same_program(read, theirs.deserialize(written))


@pytest.mark.parametrize(("namespace", "name"), [(3, "a"), ("a", None), ("a:b", "c"), ("a", "b:c")])
def test_names_of_extensions(
    registered: None, monkeypatch: pytest.MonkeyPatch, namespace: Any, name: Any
) -> None:
    monkeypatch.setattr(Handler, "namespace", lambda: namespace)
    monkeypatch.setattr(Handler, "to_op_name", lambda target: name)
    for module in (ours, theirs):
        serializer = module.GraphModuleSerializer(None, [])
        node = torch.fx.Graph().call_function(OPERATOR, (1,))
        node.meta["val"] = torch.ones(2)
        with pytest.raises((AssertionError, SerializeError, theirs.SerializeError)):
            serializer.handle_call_function(node)


def test_z153_schemas() -> None:
    add = torch.ops.aten.add.Tensor
    assert ours._get_schema_from_target(add) is theirs._get_schema_from_target(add)
    for module in (ours, theirs):
        with pytest.raises(RuntimeError, match="Cannot find schema"):
            module._get_schema_from_target(operator.add)


# ---- single facts -------------------------------------------------------------------------------


def test_numbers() -> None:
    size = next(n for n in dynamic().graph.nodes if n.name == "input").meta["val"].shape[0]
    for name, values in {
        "serialize_sym_int": (3, True, size),
        "serialize_sym_float": (1.5, size * 1.0),
        "serialize_sym_bool": (True, size > 7),
    }.items():
        for value in values:
            assert getattr(ours, name)(value) == getattr(theirs, name)(value), (name, value)
        for module in (ours, theirs):
            with pytest.raises(SerializeError, match="should be either symbol or"):
                getattr(module, name)("text")
    assert ours._print_sympy(size) == theirs._print_sympy(size)
    assert ours._print_sympy(size.node.expr) == theirs._print_sympy(size.node.expr)


def test_tensors_and_devices() -> None:
    tensor = torch.empty(4, 6, dtype=torch.half)[1:, ::2].requires_grad_()
    meta = ours.serialize_tensor_meta(tensor)
    assert typed(meta) == typed(theirs.serialize_tensor_meta(tensor))
    for module in (ours, theirs):
        assert module.deserialize_size(meta.sizes) == (3, 3)
        assert module.deserialize_stride(meta.strides) == (6, 2)
        assert module.deserialize_storage_offset(meta.storage_offset) == 6
        assert module.deserialize_scalar_type(meta.dtype) is torch.half
        assert module.deserialize_device(meta.device) == torch.device("cpu")
        indexed = schema.Device(type="cuda", index=1)
        assert module.deserialize_device(indexed) == torch.device("cuda", 1)
        symbolic = schema.SymInt.create(as_expr=schema.SymExpr("s0"))
        for read in (module.deserialize_size, module.deserialize_stride):
            with pytest.raises(AssertionError, match="Only as_int is supported"):
                read([symbolic])
        with pytest.raises(AssertionError, match="Only as_int is supported"):
            module.deserialize_storage_offset(symbolic)
        with pytest.raises(KeyError):
            module.deserialize_scalar_type(1000)


def test_ranges() -> None:
    limits = (sympy.Integer(3), sympy.oo, -sympy.oo, int_oo, -int_oo)
    for value in limits:
        assert ours._sympy_int_to_int(value, "ceil") == theirs._sympy_int_to_int(value, "ceil")
    half = sympy.Rational(7, 2)
    for adjust, expected in (("ceil", 4), ("floor", 3)):
        assert ours._sympy_int_to_int(half, adjust) == expected
        assert theirs._sympy_int_to_int(half, adjust) == expected
    for module in (ours, theirs):
        with pytest.raises(RuntimeError, match="invalid adjustment"):
            module._sympy_int_to_int(half, "round")
    for read in (None, 3, int_oo, -int_oo, float("inf"), float("-inf")):
        assert ours._int_to_sympy_int(read, int_oo) == theirs._int_to_sympy_int(read, int_oo)
    ranges = dynamic().range_constraints
    assert ours.serialize_range_constraints(ranges) == theirs.serialize_range_constraints(ranges)
