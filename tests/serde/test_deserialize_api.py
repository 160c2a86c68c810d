"""Arguments, errors and fixes of `fxpress.serialize.deserialize`."""

from __future__ import annotations

import inspect
import json
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._export.serde import serialize as torch_serialize
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim, ExportedProgram, export
from torch.utils import _pytree as pytree

from fxpress.serialize import SerializedArtifact, SerializeError, deserialize, serialize
from tests.support.deserialized import assert_reads_as_torch, assert_same_program
from tests.support.reading_cases import dynamic, edited, node_of, top


def test_the_signature_has_torchs_parameters() -> None:
    theirs = inspect.signature(torch_serialize.deserialize).parameters
    ours = inspect.signature(deserialize).parameters
    assert list(ours)[: len(theirs)] == list(theirs)


@pytest.mark.parametrize("made", [top, dynamic])
def test_a_program_survives(made: Callable[[], ExportedProgram]) -> None:
    program = made()
    read = deserialize(serialize(program))
    x = torch.randn(3, 4)
    for mine, other in zip(read.module()(x), program.module()(x), strict=True):
        assert torch.equal(mine, other)
    assert serialize(read).exported_program == serialize(program).exported_program


def test_parts_can_be_given_as_values() -> None:
    program = top()
    written = serialize(program, serialize_state_dict=False, serialize_constants=False)
    given = SerializedArtifact(written.exported_program, program.state_dict, program.constants, b"")  # type: ignore[arg-type]
    read = deserialize(given)
    assert read.state_dict is program.state_dict
    assert read.example_inputs is None
    with pytest.raises(Exception) as theirs:
        torch_serialize.deserialize(written)
    with pytest.raises(type(theirs.value)):
        deserialize(written)


def test_z112_the_program_must_be_bytes() -> None:
    written = replace(serialize(top()), exported_program="{}")  # type: ignore[arg-type]
    for read in (torch_serialize.deserialize, deserialize):
        with pytest.raises(AssertionError, match="bytes"):
            read(written)


@pytest.mark.parametrize(
    ("major", "minor", "is_read"), [(0, 0, True), (9999, 0, False), (0, 1, False)]
)
def test_z113_versions(major: int, minor: int, is_read: bool) -> None:
    def edit(stored: Any) -> None:
        stored["schema_version"] = {"major": major, "minor": minor}

    written = edited(serialize(top()), edit)
    if is_read:
        assert_reads_as_torch(written)
        return
    for read in (torch_serialize.deserialize, deserialize):
        with pytest.raises(SerializeError, match="does not match our current schema version"):
            read(written)
    assert_same_program(
        deserialize(written, _unsafe_skip_version_check=True), deserialize(serialize(top()))
    )


def test_z114_opset_versions_are_not_compared() -> None:
    assert deserialize(serialize(top()), expected_opset_version={"aten": 1}) is not None


class Secret:
    """Something that only unpickling makes."""


def test_z115_pickles_are_opened_when_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    program = top()
    program._constants["secret"] = Secret()  # type: ignore[assignment]
    written = serialize(program)
    with pytest.raises(SerializeError, match=r"constants .*allow_pickle=True"):
        deserialize(written)
    with caplog.at_level(logging.WARNING, "fxpress"):
        assert isinstance(deserialize(written, allow_pickle=True).constants["secret"], Secret)
    assert not [r for r in caplog.records if r.name == "fxpress"]


def test_example_inputs_that_need_a_pickle_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    program = top()
    program._example_inputs = ((Secret(),), {})
    written = serialize(program)
    with caplog.at_level(logging.WARNING, "fxpress"):
        assert deserialize(written).example_inputs is None
    assert "example inputs are left out" in caplog.text
    assert deserialize(written, allow_pickle=True).example_inputs is not None


def test_damaged_parts_are_named() -> None:
    written = serialize(top())
    for part in ("state_dict", "constants"):
        with pytest.raises(SerializeError, match=part):
            deserialize(replace(written, **{part: b"PK damaged"}))


def test_z117_any_number_of_threads() -> None:
    artifacts = [serialize(program) for program in (top(), dynamic())] * 6
    expected = [serialize(deserialize(artifact)).exported_program for artifact in artifacts]
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(deserialize, artifacts))
    assert [serialize(program).exported_program for program in read] == expected
    assert torch_serialize._CURRENT_DESERIALIZER is None


class Scale(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Applies(nn.Module):
    def forward(self, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        return module(x) + 1


def test_z117_modules_among_the_inputs_of_any_number_of_loads() -> None:
    """pytree knows their classes while one of the loads needs them, and not afterwards."""
    inputs = (torch.ones(3), Scale())
    artifact = serialize(export(Applies(), inputs, strict=False))
    artifact.example_inputs = (inputs, {})  # a module needs a pickle
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(deserialize, [artifact] * 40))
    assert Scale not in pytree.SUPPORTED_NODES
    for program in read:
        assert torch.equal(program.module()(*inputs), torch.full((3,), 2.0))


def test_z117_a_load_within_a_load() -> None:
    class Handler(torch_serialize.ExtensionHandler):  # type: ignore[misc]
        pass

    inner = serialize(top())
    seen: list[Any] = []

    def loads_another(text: str) -> Any:
        seen.append(deserialize(inner))
        return json.loads(text)

    class Held:
        pass

    pytree.register_pytree_node(
        Held,
        lambda held: ([held.x], None),
        lambda values, _: Held(),
        serialized_type_name="fxpress_tests.Held",
        to_dumpable_context=lambda context: "null",
        from_dumpable_context=loads_another,
    )

    class Model(nn.Module):
        def forward(self, held: Any) -> Tensor:
            return held[0] + 1  # type: ignore[no-any-return]

    program = export(Model(), ([torch.ones(2)],), strict=False)

    def edit(stored: Any) -> None:
        entry = stored["graph_module"]["module_call_graph"][0]["signature"]
        entry["in_spec"] = entry["in_spec"].replace(
            '"type": "builtins.list", "context": "null"',
            '"type": "fxpress_tests.Held", "context": "null"',
        )

    deserialize(edited(serialize(program), edit))
    assert len(seen) == 1


class Measured(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.add(x, x)


def test_z57_an_addition_of_tensors() -> None:
    program = export(Measured(), (torch.randn(2),), strict=False)
    next(n for n in program.graph.nodes if n.op == "call_function").target = torch.add
    import operator

    node = next(n for n in program.graph.nodes if n.op == "call_function")
    node.target = operator.add
    written = serialize(program)
    with pytest.raises(SerializeError):
        torch_serialize.deserialize(written)
    read = deserialize(written)
    assert [n.name for n in read.graph.nodes] == [n.name for n in program.graph.nodes]


def test_z129_files_that_do_not_say_whether_a_result_is_in_a_tuple() -> None:
    class Branches(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))

    program = export(Branches(), (torch.randn(2),), strict=False)

    def is_single(stored: Any) -> Any:
        return node_of(stored, "higher_order")

    written = serialize(program)
    before = is_single(json.loads(written.exported_program))["is_hop_single_tensor_return"]

    def edit(stored: Any) -> None:
        node = is_single(stored)
        del node["is_hop_single_tensor_return"]

    read = deserialize(edited(written, edit))
    hop = next(n for n in read.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator))
    assert isinstance(hop.meta["val"], FakeTensor)  # old files: the value itself
    assert before in (True, False)


@pytest.fixture
def library() -> Any:
    with torch.library._scoped_library("fxpress_deserialize", "DEF") as made:
        yield made


def test_z130_arguments_named_by_python_keywords(library: Any) -> None:
    library.define("span(Tensor x, int scale=1, int from=0) -> Tensor")
    library.impl("span", lambda x, scale=1, start=0: x * scale + start, "CompositeExplicitAutograd")
    span = torch.ops.fxpress_deserialize.span.default

    class Spanned(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return span(x, 3, 5)  # type: ignore[no-any-return]

    program = export(Spanned(), (torch.randn(2),), strict=False)

    def edit(stored: Any) -> None:
        for given in node_of(stored, "span")["inputs"][1:]:
            given["kind"] = 2

    read = deserialize(edited(serialize(program), edit))
    node = next(n for n in read.graph.nodes if n.target is span)
    assert node.args[1:] == (3, 5)
    assert node.kwargs == {}


class NoGradient(nn.Module):
    """A graph within, whose results nobody uses."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            x.sin()
        return x + 1


def test_graphs_that_return_nothing() -> None:
    program = export(NoGradient(), (torch.ones(2),), strict=False)
    hop = next(
        n for n in program.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator)
    )
    assert hop.meta["val"] == ()
    written = serialize(program)
    with pytest.raises(Exception, match="is missing val field"):
        torch_serialize.deserialize(written)
    read = deserialize(written)
    assert [n.target for n in read.graph.nodes] == [n.target for n in program.graph.nodes]
    assert torch.equal(read.module()(torch.ones(2)), torch.full((2,), 2.0))


def test_z133_an_operator_that_returns_no_tensors(library: Any) -> None:
    library.define("none(Tensor x) -> Tensor[]")
    library.impl("none", lambda x: [], "CompositeExplicitAutograd")
    none = torch.ops.fxpress_deserialize.none.default

    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            none(x)
            return x + 1

    program = export(Nothing(), (torch.randn(2),), strict=False)
    if not any(n.target is none for n in program.graph.nodes):
        pytest.skip("torch drops it")
    read = deserialize(serialize(program))
    assert next(n for n in read.graph.nodes if n.target is none).meta["val"] == ()


def test_z134_a_symbolic_bool_among_several_results(library: Any) -> None:
    written = serialize(dynamic())

    def edit(stored: Any) -> None:
        graph = stored["graph_module"]["graph"]
        outputs = node_of(stored, "topk")["outputs"]
        outputs.append({"as_sym_bool": {"as_name": "is_large"}})
        graph["sym_bool_values"]["is_large"] = {"as_bool": True}

    read = deserialize(edited(written, edit))
    assert "is_large" in [n.name for n in read.graph.nodes]


def test_z137_outputs_that_are_texts() -> None:
    class Says(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, str]:
            return x + 1, "text"

    program = export(Says(), (torch.randn(2),), strict=False)
    written = serialize(program)
    with pytest.raises(SerializeError, match="Unable to deserialize output"):
        torch_serialize.deserialize(written)
    read = deserialize(written)
    assert read.module()(torch.ones(2))[1] == "text"


def test_z142_tensors_keep_their_place_in_the_storage() -> None:
    class Sliced(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[1:, 2:]

    for shapes in (None, ({0: Dim("rows", min=4, max=64)},)):
        program = export(Sliced(), (torch.randn(6, 4),), dynamic_shapes=shapes, strict=False)
        read = deserialize(serialize(program))
        for mine, original in zip(read.graph.nodes, program.graph.nodes, strict=True):
            value, expected = mine.meta["val"], original.meta.get("val")
            if isinstance(expected, Tensor):
                assert str(value.storage_offset()) == str(expected.storage_offset())
                assert str(value.stride()) == str(expected.stride())
                assert not value._is_view()


def test_storage_offsets_of_inputs_that_no_range_is_written_for() -> None:
    class Halves(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat(list(reversed(x.chunk(2, -1))), -1)

    rows = Dim("rows", min=2, max=64)
    program = export(Halves(), (torch.randn(6, 4)[3:],), dynamic_shapes=({0: rows},), strict=True)
    offset = program.graph.find_nodes(op="placeholder")[0].meta["val"].storage_offset()
    assert offset.node.expr not in program.range_constraints
    written = serialize(program)
    assert_reads_as_torch(written)
    assert serialize(deserialize(written)).exported_program == written.exported_program


def test_ranges_that_nodes_give_to_sizes() -> None:
    """Older releases of torch leave such nodes in programs."""

    class Sized(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            size = x.item()
            torch._check(size <= 10)
            return torch.ones(size)  # type: ignore[arg-type]

    program = export(Sized(), (torch.tensor(4),), strict=False)
    (item,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.item.default)
    constrain = torch.ops.aten.sym_constrain_range_for_size.default
    with program.graph.inserting_after(item):
        program.graph.call_function(constrain, (item,)).meta["val"] = None
    read = assert_reads_as_torch(serialize(program))
    assert read is not None
    assert read.graph.find_nodes(op="call_function", target=constrain)


def test_metadata_of_the_graph() -> None:
    program = top()
    program.graph_module.meta["custom"] = {"a": [1, None]}
    read = assert_reads_as_torch(serialize(program))
    assert read is not None
    assert read.graph_module.meta["custom"] == {"a": [1, None]}


def test_modules_that_return_nothing() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> tuple[()]:
            return ()

    program = export(Nothing(), (torch.randn(2),), strict=False)
    assert deserialize(serialize(program)).module()(torch.ones(2)) == ()


def test_fake_tensors_in_the_state() -> None:
    program = top()
    with FakeTensorMode():
        for name in ("linear.weight", "linear.bias"):
            program.state_dict[name] = nn.Parameter(torch.empty(program.state_dict[name].shape))
    written = serialize(program)
    read = deserialize(written)
    assert_reads_as_torch(written)
    assert isinstance(read.state_dict["linear.weight"], nn.Parameter)
    modes = {id(t.fake_mode) for t in read.state_dict.values() if isinstance(t, FakeTensor)}
    modes |= {id(n.meta["val"].fake_mode) for n in read.graph.find_nodes(op="placeholder")}
    assert len(modes) == 1


@pytest.mark.parametrize("allowed", [True, False])
def test_the_data_of_fake_tensors_can_be_asked_for_as_in_torch(allowed: bool) -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(3)))  # weights that are alike
    written = serialize(export(model, (torch.randn(1, 2),), strict=False))

    def asked(value: Tensor) -> int | str:
        try:
            return value.untyped_storage().data_ptr()
        except RuntimeError as error:
            return str(error)

    with torch._functorch.config.patch(fake_tensor_allow_unsafe_data_ptr_access=allowed):
        mine, theirs = (
            [asked(node.meta["val"]) for node in read(written).graph.find_nodes(op="placeholder")]
            for read in (deserialize, torch_serialize.deserialize)
        )
    assert mine == theirs
    assert len(mine) == 7
    assert all((answer == 0) is allowed for answer in mine)


def test_signatures_have_torchs_attributes() -> None:
    written = serialize(top())
    mine, theirs = deserialize(written), torch_serialize.deserialize(written)

    def attributes(read: ExportedProgram) -> list[Any]:
        specs = [*read.graph_signature.input_specs, *read.graph_signature.output_specs]
        parts = [*specs, *(spec.arg for spec in specs), *read.module_call_graph]
        return [(type(part), list(vars(part))) for part in parts]

    assert attributes(mine) == attributes(theirs)


def test_metadata_of_results_is_their_own() -> None:
    program = top()
    node = next(n for n in program.graph.nodes if "topk" in str(n.target))
    node.meta["custom"] = {"a": {"b": [1]}}
    read = deserialize(serialize(program))
    held = [n.meta["custom"]["a"] for n in read.graph.nodes if "custom" in n.meta]
    assert len(held) == 3  # the operator and its two results
    held[0]["b"].append(2)
    assert [h["b"] for h in held[1:]] == [[1], [1]]
