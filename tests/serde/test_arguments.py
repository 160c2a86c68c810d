"""Arguments of nodes of the rarer kinds: lists of symbolic numbers, nested lists of tensors,
devices with an index, lowered modules, Inductor's buffers; written and read as torch."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import schema
from torch._export.serde import serialize as torch_serialize
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind, InputSpec, SymBoolArgument
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

import fxpress
from fxpress.serialize import SerializeError, deserialize, serialize
from tests.support.deserialized import assert_reads_as_torch
from tests.support.reading_cases import node_of, top
from tests.support.serialized import assert_travels_as_torch

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def operators() -> Iterator[None]:
    """Operators whose arguments are lists of rarer types of the schema."""
    with torch.library._scoped_library("fxpress_arguments", "DEF") as library:
        for name, kind in {"floats": "float[]", "bools": "bool[]", "nested": "Tensor[][]"}.items():
            library.define(f"{name}(Tensor x, {kind} values) -> Tensor")
            library.impl(name, lambda x, values: x.clone(), "CompositeExplicitAutograd")
        yield


class Counts(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Any]:
        return x.sin(), x.shape[0] / 2


def dynamic() -> ExportedProgram:
    """A program with a symbolic float and a symbolic bool among its nodes."""
    rows = {0: Dim("rows", min=2, max=64)}
    program = export(Counts(), (torch.randn(5, 4),), dynamic_shapes=(rows,), strict=False)
    size = symbolic(program, torch.SymInt)
    with program.graph.inserting_after(size):
        is_large = program.graph.call_function(operator.gt, (size, 3))
    is_large.meta["val"] = size.meta["val"] > 3
    return program


def symbolic(program: ExportedProgram, kind: type) -> Node:
    return next(n for n in program.graph.nodes if isinstance(n.meta.get("val"), kind))


def with_list(program: ExportedProgram, name: str, values: Any) -> ExportedProgram:
    """Return a program with this operator and a list, in place of the sine."""
    (sin,) = program.graph.find_nodes(op="call_function", target=aten.sin.default)
    program.graph.output_node().prepend(sin)
    sin.target = getattr(torch.ops.fxpress_arguments, name).default
    sin.args = (sin.args[0], values)
    return program


def argument_of(written: Any, target: str) -> Any:
    return node_of(json.loads(written.exported_program), target)["inputs"][1]["arg"]


def list_of(program: ExportedProgram, kind: str, mixed: bool) -> tuple[str, list[Any]]:
    if kind == "floats":
        half = symbolic(program, torch.SymFloat)
        return "as_sym_floats", [half, 1.5, half] if mixed else [half, half]
    is_large = symbolic(program, torch.SymBool)
    return "as_sym_bools", [True, is_large, False] if mixed else [is_large]


@pytest.mark.parametrize("kind", ["floats", "bools"])
def test_lists_of_symbolic_numbers(kind: str) -> None:
    program = dynamic()
    tag, values = list_of(program, kind, mixed=False)
    with_list(program, kind, values)
    assert_travels_as_torch(program)
    assert argument_of(serialize(program), kind) == {tag: [{"as_name": v.name} for v in values]}


@pytest.mark.parametrize("kind", ["floats", "bools"])
def test_lists_of_symbolic_numbers_and_constants(kind: str) -> None:
    """torch writes these lists, and then fails to check whether the constants are ints."""
    program = dynamic()
    tag, values = list_of(program, kind, mixed=True)
    with_list(program, kind, values)
    with pytest.raises(AssertionError, match="as_int is not a valid tag"):
        torch_serialize.serialize(program)
    written = serialize(program)
    names = {float: "as_float", bool: "as_bool"}
    assert argument_of(written, kind) == {
        tag: [{"as_name": v.name} if isinstance(v, Node) else {names[type(v)]: v} for v in values]
    }
    assert_reads_as_torch(written)


def test_symbolic_floats_of_inductor() -> None:
    numbers: list[Any] = [ShapeEnv().create_unbacked_symfloat() for _ in range(2)]
    mine, other = (
        module.GraphModuleSerializer(None, []) for module in (fxpress.serialize, torch_serialize)
    )
    for value in (numbers, numbers[0], [*numbers, 1.5]):
        try:
            expected = other.serialize_input(value)
        except SerializeError:
            with pytest.raises(SerializeError, match="Unsupported list/tuple argument type"):
                mine.serialize_input(value)
        else:
            assert mine.serialize_input(value) == expected


def test_symbolic_bools_as_inputs() -> None:
    """Nothing that torch exports."""
    program = dynamic()
    is_large = symbolic(program, torch.SymBool)
    with program.graph.inserting_after(program.graph.find_nodes(op="placeholder")[0]):
        given = program.graph.placeholder("given")
    given.meta["val"] = is_large.meta["val"]
    spec = InputSpec(InputKind.USER_INPUT, SymBoolArgument("given"), None)
    program.graph_signature.input_specs.append(spec)
    artifact = serialize(program, serialize_example_inputs=False)
    read = deserialize(artifact)
    assert read.graph_signature.input_specs == program.graph_signature.input_specs
    value = read.graph.find_nodes(op="placeholder")[1].meta["val"]
    assert str(value.node.expr) == str(is_large.meta["val"].node.expr)
    assert serialize(read).exported_program == artifact.exported_program


NESTED: list[Callable[[Node], Any]] = [
    lambda x: [[x, x], [x]],
    lambda x: [(x,), []],
]


@pytest.mark.parametrize("make", NESTED)
def test_nested_lists_of_tensors(make: Callable[[Node], Any]) -> None:
    program = dynamic()
    with_list(program, "nested", make(program.graph.find_nodes(op="placeholder")[0]))
    assert_travels_as_torch(program)
    assert list(argument_of(serialize(program), "nested")) == ["as_nested_tensors"]


@pytest.mark.parametrize("kind", ["floats", "bools", "nested"])
def test_lists_enter_the_hash(kind: str) -> None:
    programs = []
    for turned in (False, True, False):
        program = dynamic()
        x = program.graph.find_nodes(op="placeholder")[0]
        values = [[x], [x, x]] if kind == "nested" else list_of(program, kind, mixed=True)[1][:2]
        programs.append(with_list(program, kind, values[::-1] if turned else values))
    hashes = [fxpress.graph_hash(program) for program in programs]
    assert hashes[0] == hashes[2] != hashes[1]


def with_call(target: Any, **kwargs: Any) -> ExportedProgram:
    """A program in which an addition is another operator."""
    program = top()
    (add,) = program.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    add.target, add.args, add.kwargs = target, (add.args[0],), kwargs
    return program


@pytest.mark.parametrize("device", ["cuda:1", "cpu:0", "cuda"])
def test_devices(device: str) -> None:
    assert_travels_as_torch(with_call(aten.ones_like.default, device=torch.device(device)))


def test_dtypes_without_a_code() -> None:
    program = with_call(aten.ones_like.default, dtype=torch.bits8)
    of_a_value = top()
    (add,) = of_a_value.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    add.meta["val"] = add.meta["val"].new_empty(2, dtype=torch.bits8)
    for write in (torch_serialize.serialize, serialize):
        for made in (program, of_a_value):
            with pytest.raises(SerializeError) as caught:
                write(made)
            assert isinstance(caught.value.__cause__, KeyError)


class LoweredBackendModule(nn.Module):
    """The attributes of ExecuTorch's lowered modules that the serializer reads: a name and a
    backend."""

    def __init__(self, module_name: str | None) -> None:
        super().__init__()
        self.module_name = module_name
        self.backend_id = "backend"


def with_lowered(module: nn.Module) -> ExportedProgram:
    program = top()
    program.graph_module.lowered = module
    (add,) = program.graph.find_nodes(op="call_function", target=aten.add.Tensor)
    with program.graph.inserting_before(add):
        held = program.graph.get_attr("lowered")
    add.target = torch.ops.higher_order.invoke_subgraph
    add.args = (held, *add.args)
    return program


def test_lowered_modules() -> None:
    parts = []
    for module in (fxpress.serialize, torch_serialize):
        program = with_lowered(LoweredBackendModule("name"))
        (node,) = program.graph.find_nodes(
            op="call_function", target=torch.ops.higher_order.invoke_subgraph
        )
        parts.append(module.GraphModuleSerializer(None, []).serialize_input(node.args[0]))
    assert parts[0] == parts[1] == schema.Argument.create(as_string="name-backend")


@pytest.mark.parametrize("module", [LoweredBackendModule(None), nn.Linear(1, 1)])
def test_modules_that_are_not_lowered(module: nn.Module) -> None:
    for part in (fxpress.serialize, torch_serialize):
        (held,) = with_lowered(module).graph.find_nodes(op="get_attr")
        with pytest.raises((SerializeError, AssertionError), match=r"getattr|should not be None"):
            part.GraphModuleSerializer(None, []).serialize_input(held)


def test_buffers_of_inductor() -> None:
    from torch._inductor import ir

    layout = ir.FixedLayout(torch.device("cpu"), torch.float32, [2])
    buffer = ir.InputBuffer(name="buf0", layout=layout)
    mine, other = (
        module.GraphModuleSerializer(None, []) for module in (fxpress.serialize, torch_serialize)
    )
    for value in (buffer, [buffer, buffer], [buffer, None]):
        assert mine.serialize_input(value) == other.serialize_input(value)
