"""Arguments, errors and fixes of `fxpress.serialize.serialize`."""

from __future__ import annotations

import copyreg
import inspect
import json
import logging
import operator
import subprocess
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import Dim, ExportedProgram, export, graph_signature
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxpress import UnsupportedError, _native
from fxpress._files.serde import program as program_module
from fxpress._files.serde import schema
from fxpress.serialize import SerializedArtifact, SerializeError, deserialize, serialize
from tests.support.serialized import assert_serializes_as_torch, with_numbered_graphs


class Top(nn.Module):
    """Two results of one operator."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        values, indices = x.topk(2)
        return values + 1, indices


def top() -> ExportedProgram:
    return export(Top(), (torch.randn(3, 4),), strict=False)


def nodes_of(artifact: SerializedArtifact) -> list[Any]:
    graph = json.loads(artifact.exported_program)["graph_module"]["graph"]
    return list(graph["nodes"])


def test_names_and_signature_are_torchs() -> None:
    assert SerializeError is torch_serialize.SerializeError
    assert SerializedArtifact is torch_serialize.SerializedArtifact
    ours, theirs = inspect.signature(serialize), inspect.signature(torch_serialize.serialize)
    assert list(ours.parameters) == [*theirs.parameters, "progress"]
    for name, parameter in theirs.parameters.items():
        assert ours.parameters[name].default == parameter.default
        assert ours.parameters[name].kind == parameter.kind


@pytest.mark.parametrize("left_out", ["state_dict", "constants", "example_inputs"])
def test_parts_can_be_left_out(left_out: str) -> None:
    program = export(nn.Linear(2, 2), (torch.randn(3, 2),), strict=False)
    artifact = assert_serializes_as_torch(program, **{f"serialize_{left_out}": False})
    assert getattr(artifact, left_out) == b""


def test_opset_version_and_protocol() -> None:
    program = top()
    for version in (None, {}, {"mine": 3}, {"aten": 7, "mine": 1}):
        assert_serializes_as_torch(program, opset_version=version)
    assert_serializes_as_torch(program, pickle_protocol=4)


def test_z97_equal_strict_exports_give_equal_bytes() -> None:
    made = [export(nn.Linear(2, 2), (torch.randn(3, 2),), strict=True) for _ in range(2)]
    first, second = (serialize(program).exported_program for program in made)
    assert b"graph_id" in first
    assert first == second
    assert torch_serialize.serialize(made[0]).exported_program != first


class Nothing(nn.Module):
    def forward(self, x: Tensor) -> tuple[()]:
        return ()


def test_z106_a_module_that_returns_nothing() -> None:
    program = export(Nothing(), (torch.randn(2),), strict=False)
    with pytest.raises(ValueError, match="unpack"):
        torch_serialize.serialize(program)
    artifact = serialize(program)
    assert torch_serialize.deserialize(artifact).module()(torch.randn(2)) == ()


def twice(program: ExportedProgram) -> tuple[Any, Any]:
    """Adds a second getitem of the first result; returns both."""
    graph = program.graph
    producer = next(n for n in graph.nodes if n.target is torch.ops.aten.topk.default)
    first = next(u for u in producer.users if u.args[1] == 0)
    with graph.inserting_after(first):
        second = graph.call_function(operator.getitem, (producer, 0))
    second.meta = dict(first.meta)
    return first, second


def test_z75_a_duplicate_in_a_list_of_tensors() -> None:
    program = top()
    first, second = twice(program)
    graph = program.graph
    add = next(n for n in graph.nodes if n.target is torch.ops.aten.add.Tensor)
    with graph.inserting_before(add):
        joined = graph.call_function(torch.ops.aten.cat.default, ([first, second],))
        joined.meta = dict(add.meta)
        joined.meta["val"] = torch.ops.aten.cat.default([first.meta["val"]] * 2)
    add.args = (joined, 1)
    with pytest.raises(AssertionError, match="not in def_table"):
        torch_serialize.serialize(program)
    artifact = serialize(program)
    (cat,) = (n for n in nodes_of(artifact) if n["target"].endswith("cat.default"))
    assert cat["inputs"][0]["arg"] == {"as_tensors": [{"name": first.name}] * 2}
    loaded = torch_serialize.deserialize(artifact).module()
    x = torch.randn(3, 4)
    expected = x.topk(2).values
    torch.testing.assert_close(loaded(x)[0], torch.cat([expected, expected]) + 1)


def test_z82_a_duplicate_as_an_argument() -> None:
    program = top()
    _, second = twice(program)
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.args = (second, 1)
    assert_serializes_as_torch(program)


def test_z83_a_duplicate_as_an_output() -> None:
    program = top()
    _, second = twice(program)
    output = program.graph.output_node()
    output.args = ((second, output.args[0][1]),)
    program.graph_signature.output_specs[0].arg.name = second.name
    with pytest.raises(KeyError):
        torch_serialize.serialize(program)
    loaded = torch_serialize.deserialize(serialize(program)).module()
    x = torch.randn(3, 4)
    torch.testing.assert_close(loaded(x)[0], x.topk(2).values)


class Compares(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return x.shape[0] > 7, x.shape[0] * 2


def test_z53_a_symbolic_bool_is_returned() -> None:
    program = export(
        Compares(), (torch.randn(6, 2),), dynamic_shapes=({0: Dim("n", min=2)},), strict=False
    )
    with pytest.raises(AssertionError):
        torch_serialize.serialize(program)
    graph_module = json.loads(serialize(program).exported_program)["graph_module"]
    name = program.graph.output_node().args[0][0].name
    spec = {"user_output": {"arg": {"as_sym_bool": {"as_name": name}}}}
    assert graph_module["signature"]["output_specs"][0] == spec
    assert graph_module["graph"]["outputs"][0] == {"as_sym_bool": {"as_name": name}}


@pytest.fixture
def library() -> Any:
    with torch.library._scoped_library("fxpress_serialize", "DEF") as made:
        yield made


def test_z80_an_operator_returns_a_tensor_and_a_size(library: Any) -> None:
    library.define("measure(Tensor x) -> (Tensor, SymInt)")
    library.impl("measure", lambda x: (x + 1, x.shape[0]), "CompositeExplicitAutograd")
    measure = torch.ops.fxpress_serialize.measure.default

    class Measured(nn.Module):
        def forward(self, x: Tensor) -> Any:
            y, size = measure(x)
            return y * size

    program = export(
        Measured(), (torch.randn(6, 2),), dynamic_shapes=({0: Dim("n", min=2)},), strict=False
    )
    with pytest.raises(SerializeError, match="Unhandled output type"):
        torch_serialize.serialize(program)
    node = next(n for n in nodes_of(serialize(program)) if "measure" in n["target"])
    assert [next(iter(o)) for o in node["outputs"]] == ["as_tensor", "as_sym_int"]


def test_z107_the_table_of_reducers_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    # torch's warning about the fake tensor has a format of two values, and one value.
    monkeypatch.setattr(logging.getLogger(torch_serialize.__name__), "disabled", True)
    program = export(nn.Linear(2, 2), (torch.randn(3, 2),), strict=False)
    mode = torch._subclasses.FakeTensorMode()
    with mode:
        fake = torch.nn.Parameter(torch.empty(2, 2, dtype=torch.float64))
    program.state_dict["weight"] = fake
    before = dict(copyreg.dispatch_table)
    artifact = serialize(program)
    assert copyreg.dispatch_table == before
    assert artifact == torch_serialize.serialize(program)
    loaded = torch_serialize.deserialize(artifact).state_dict["weight"]
    assert isinstance(loaded, FakeTensor)
    assert loaded.dtype == torch.float64
    # Whoever has a reducer of their own for the process keeps it; torch refuses to save.
    copyreg.pickle(FakeTensor, lambda tensor: (int, (0,)))
    try:
        assert serialize(program) == artifact
    finally:
        del copyreg.dispatch_table[FakeTensor]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ([1, True], "Unsupported list/tuple argument type"),
        ([1, 1.5], "Unsupported list/tuple argument type"),
        ((1, (2, 3)), "Unsupported list/tuple argument type"),
        (slice(1), "Unsupported argument type"),
        ({1: 2}, "Dict keys must be strings"),
    ],
)
def test_errors_name_the_node(argument: Any, message: str) -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.args = (add.args[0], argument)
    for function in (torch_serialize.serialize, serialize):
        with pytest.raises(SerializeError, match=message) as caught:
            function(program)
        assert f"Failed serializing node {add.name}" in str(caught.value)
        assert isinstance(caught.value.__cause__, Exception)


def test_a_value_of_an_unknown_type() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.meta["val"] = [add.meta["val"]]
    for function in (torch_serialize.serialize, serialize):
        with pytest.raises(SerializeError, match="Unable to serialize output"):
            function(program)


def test_texts_that_are_not_unicode() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.meta["stack_trace"] = 'a"b\\\n\t\f é € 😀 \ud800'
    assert_serializes_as_torch(program)


def test_texts_with_control_characters_are_written_and_not_read() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.meta["stack_trace"] = "\x00\x1b\x7f\r"
    written = serialize(program)
    theirs = torch_serialize.serialize(program)
    assert written.exported_program == with_numbered_graphs(theirs.exported_program)
    with pytest.raises(SerializeError, match=r"metadata\['stack_trace'\]: .*cannot be in"):
        deserialize(written)


def test_numbers_at_the_limits() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    for number in (2**63 - 1, -(2**63), 2**64, 0.1, 1e16, 1e-5, 5e-324, float("inf"), 1j):
        add.args = (add.args[0], number)
        assert_serializes_as_torch(program)
    add.args = (add.args[0], float("nan"))
    assert {"as_float": "NaN"} in [
        i["arg"] for n in nodes_of(serialize(program)) for i in n["inputs"]
    ]


def test_metadata() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.meta["custom"] = {"a": [1, "é"], "b": None}
    add.meta["torch_fn"] = ("add_1", "Tensor.add")
    add.meta["source_fn_stack"] = [
        ("l", nn.Linear),
        ("f", torch.add),
        ("g", operator.add),
        ("s", "t"),
    ]
    add.meta["from_node"] = None
    program.graph_module.meta["custom"] = {"c": 1}
    assert_serializes_as_torch(program)
    add.meta["custom"] = {"a": object()}
    for function in (torch_serialize.serialize, serialize):
        with pytest.raises(SerializeError, match=f"custom metadata for node {add.name}"):
            function(program)


class Odd:
    """A key of a module stack that is formatted in its own way."""

    def __format__(self, spec: str) -> str:
        return "odd"


def test_module_stacks_of_other_mappings() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    stack: Any = OrderedDict({"a": ("x", "X"), "b": ("y", "Y"), Odd(): ("z", "Z")})
    stack.move_to_end("a")
    for mapping in (stack, MappingProxyType(dict(stack))):
        add.meta["nn_module_stack"] = mapping
        assert_serializes_as_torch(program)


class Shrinks:
    """Empties a list while that is written."""

    def __init__(self, of: list[Any]) -> None:
        self.of = of

    def __format__(self, spec: str) -> str:
        self.of.clear()
        return "gone"

    __str__ = __repr__ = lambda self: format(self)  # type: ignore[assignment]


def test_what_changes_while_it_is_written_is_held() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    values: list[Any] = []
    values += [(Shrinks(values), "a"), ("b", "c")]
    add.meta["source_fn_stack"] = values
    node = next(n for n in nodes_of(serialize(program)) if n["target"].endswith("add.Tensor"))
    assert node["metadata"]["source_fn_stack"] == "gone,a;b,c"
    assert values == []


@pytest.mark.parametrize("entry", [("name",), (), 3], ids=repr)
def test_entries_of_source_fn_stack_that_are_no_pairs(entry: Any) -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    add.meta["source_fn_stack"] = [entry]
    for function in (torch_serialize.serialize, serialize):
        with pytest.raises(SerializeError, match=add.name) as caught:
            function(program)
        assert isinstance(caught.value.__cause__, (IndexError, TypeError))


def test_errors_in_deep_values_leave_no_trace() -> None:
    program = top()
    add = next(n for n in program.graph.nodes if n.target is torch.ops.aten.add.Tensor)
    deep: Any = {"a": slice(1)}
    for _ in range(20):
        deep = {"a": deep}
    add.args = (add.args[0], deep)
    for _ in range(2 * sys.getrecursionlimit() // 20):
        with pytest.raises(SerializeError, match="Unsupported argument type"):
            serialize(program)
    add.args = (add.args[0], 1)
    assert_serializes_as_torch(program)


def test_threads_get_the_bytes_of_one() -> None:
    programs = [top(), export(nn.Linear(2, 2), (torch.randn(3, 2),), strict=True)] * 8
    expected = [serialize(program) for program in programs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(serialize, programs)) == expected


def test_z76_objects_as_literals() -> None:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.sin()

    packed = torch.ops.quantized.linear_prepack(
        torch.quantize_per_tensor(torch.ones(4, 4), 0.1, 0, torch.qint8), None
    )
    program = export(Model(), (torch.randn(2, 4),), strict=False)
    sin = next(n for n in program.graph.nodes if n.op == "call_function")
    sin.target = torch.ops.quantized.linear_dynamic.default
    sin.args = (sin.args[0], packed)
    written = assert_serializes_as_torch(program)
    (argument,) = [i["arg"] for i in nodes_of(written)[0]["inputs"][1:]]
    assert argument["as_custom_obj"]["name"] == "_custom_obj_0"
    with pytest.warns(UserWarning, match="Unable to execute the generated python source code"):
        read = deserialize(written, allow_pickle=True)  # as in torch: objects have no source
    assert list(read.constants) == ["_custom_obj_0"]
    literal = next(n for n in read.graph.nodes if n.op == "call_function").args[1]
    assert literal is read.constants["_custom_obj_0"]
    assert literal.__getstate__() is not None


@pytest.mark.parametrize("kind", ["float", "bool"])
def test_z88_symbolic_floats_and_bools_as_inputs(kind: str) -> None:
    """torch does not support such inputs: it raises, or writes another type."""
    environment = ShapeEnv()
    number: Any = environment.create_unbacked_symfloat()
    spec: Any = graph_signature.SymFloatArgument
    if kind == "bool":
        number, spec = number > 1.0, graph_signature.SymBoolArgument
    program = top()
    given = program.graph.find_nodes(op="placeholder")[0]
    with program.graph.inserting_before(given):
        extra = program.graph.placeholder("extra")
    extra.meta["val"] = number
    program.graph_signature.input_specs.insert(
        0, graph_signature.InputSpec(graph_signature.InputKind.USER_INPUT, spec("extra"), None)
    )
    artifact = serialize(program, serialize_example_inputs=False)
    graph = json.loads(artifact.exported_program)["graph_module"]["graph"]
    assert graph["inputs"][0] == {f"as_sym_{kind}": {"as_name": "extra"}}
    assert list(graph[f"sym_{kind}_values"]) == ["extra"]
    if kind == "bool":
        with pytest.raises(
            SerializeError, match="the nodes of the graph do not define the symbols"
        ):
            deserialize(artifact)
        return
    read = deserialize(artifact)
    assert read.graph_signature.input_specs[0].arg == spec("extra")
    assert type(read.graph.find_nodes(op="placeholder")[0].meta["val"]) is type(number)


@pytest.mark.slow("imports torch in a separate process")
def test_z77_inductor_is_not_imported() -> None:
    script = (
        "import sys, torch\n"
        "from fxpress.serialize import serialize\n"
        "program = torch.export.export(torch.nn.ReLU(), (torch.ones(2),), strict=False)\n"
        "before = 'torch._inductor.ir' in sys.modules\n"
        "serialize(program)\n"
        "print(before, 'torch._inductor.ir' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    before, after = done.stdout.split()
    assert before == after


def test_z102_no_text_of_the_graph_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[Any] = []
    program = top()
    monkeypatch.setattr(torch.fx.GraphModule, "print_readable", lambda *a, **k: printed.append(a))
    serialize(program)
    assert not printed
    torch_serialize.serialize(program)
    assert printed


def test_metadata_of_graphs_that_is_no_json() -> None:
    program = top()
    program.graph_module.meta["custom"] = {"a": object()}
    messages = []
    for write in (torch_serialize.serialize, serialize):
        with pytest.raises(torch_serialize.SerializeError, match="custom metadata") as caught:
            write(program)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("change", ["add", "remove"])
def test_a_schema_with_other_fields_is_refused(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = [schema.describe(cls) for cls in schema.TYPES.values()]
    fields = next(fields for name, _, fields in types if name == "Node")
    if change == "add":
        fields.append(("color", "str", None))
    else:
        fields.pop()
    monkeypatch.setattr(program_module, "SCHEMA", _native.Schema(types))
    with pytest.raises(UnsupportedError, match=r"Node\.(color|name)") as caught:
        serialize(top())
    assert isinstance(caught.value, SerializeError)
