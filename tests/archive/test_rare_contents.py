"""Contents that few archives have, with torch and with fxpress."""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch._inductor.codecache import get_device_information
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, export
from torch.export.pt2_archive import _package as torch_package
from torch.testing._internal.two_tensor import TwoTensor

from fxpress import UnsupportedError, _native, archive, pipeline, state
from fxpress._files.archive import payloads
from fxpress._files.serde.schema import TYPES, describe
from fxpress._torch.archive import load_compiled_model
from fxpress._torch.fx import is_fake
from fxpress._torch.versions import features
from fxpress.serialize import serialize
from tests.support.archived import (
    OneWeight,
    assert_same_records,
    records_of,
    rewritten,
    saved_by_torch,
    saved_by_us,
)
from tests.support.opaque import handle_of_a_custom_class

WAYS = (archive, torch_package)


@pytest.fixture
def program() -> ExportedProgram:
    return export(OneWeight(), (torch.ones(3),), strict=False)


@pytest.mark.skipif(not features.opaque_records, reason="this torch has no such records")
def test_objects_of_classes_of_python(program: ExportedProgram) -> None:
    program.constants["handle"] = handle = handle_of_a_custom_class()
    data = saved_by_us(program)
    assert_same_records(data, saved_by_torch(program))
    with pytest.raises(archive.SerializeError, match=r"opaque_obj_0.*allow_pickle"):
        archive.load(io.BytesIO(data))
    for load in (torch.export.load, lambda f: archive.load(f, allow_pickle=True)):
        assert type(load(io.BytesIO(data)).constants["handle"]) is type(handle)


def test_a_constant_with_the_name_of_an_object() -> None:
    """The object is an argument of a node, and has no other name."""
    weight = torch.quantize_per_tensor(torch.ones(2, 2), 1.0, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    for module in WAYS:
        program = export(OneWeight(), (torch.ones(3),), strict=False)
        (call,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.mul.Tensor)
        call.target = torch.ops.quantized.linear_dynamic.default
        call.args = (call.args[0], packed)
        program.constants["_custom_obj_0"] = packed
        with pytest.raises(AssertionError, match="'_custom_obj_0' already exists"):
            module.package_pt2(io.BytesIO(), exported_programs={"model": program})


def test_one_program_without_a_name(program: ExportedProgram) -> None:
    written = []
    for module in WAYS:
        buffer = io.BytesIO()
        module.package_pt2(buffer, exported_programs=program)
        written.append(buffer.getvalue())
    assert_same_records(*written)


def test_conjugated_parameters(program: ExportedProgram) -> None:
    plain = torch.tensor([1 + 2j, 3 - 4j])
    program.state_dict["weight"] = torch.nn.Parameter(plain.conj(), requires_grad=False)
    loaded = archive.load(io.BytesIO(saved_by_us(program))).state_dict["weight"]
    assert isinstance(loaded, torch.nn.Parameter)
    assert not loaded.requires_grad
    assert torch.equal(loaded.resolve_conj(), plain.conj().resolve_conj())


def test_weights_for_compiled_models() -> None:
    runners = [mock.Mock(), mock.Mock()]
    weights = {"w": torch.ones(2)}
    for module, runner in zip(WAYS, runners, strict=True):
        contents = torch_package.PT2ArchiveContents({}, {"model": runner}, {})
        module.load_weights_to_pt2_contents(contents, {"model": weights})
    assert runners[0].mock_calls == runners[1].mock_calls != []


@pytest.mark.parametrize("version", [None, b"0", b"7"], ids=str)
def test_versions_of_archives(program: ExportedProgram, version: bytes | None) -> None:
    data = saved_by_us(program)
    (name,) = [name for name in records_of(data) if name.endswith("archive_version")]
    changed = rewritten(data, {name: version})
    found = [module.PT2ArchiveReader(io.BytesIO(changed)).archive_version() for module in WAYS]
    assert found[0] == found[1]


@pytest.mark.parametrize("position", [-1, None, "1"])
def test_files_that_are_nowhere(program: ExportedProgram, position: Any) -> None:
    class Odd(io.BytesIO):
        def tell(self) -> Any:
            return position

    with pytest.raises(TypeError, match="to return an offset"):
        archive.load(Odd(saved_by_us(program)))


WRITERS: list[Callable[[ExportedProgram, io.BytesIO], Any]] = [
    archive.save,
    lambda program, file: state.write(program.state_dict, file),
]


@pytest.mark.parametrize("write", WRITERS, ids=["save", "state.write"])
def test_a_schema_with_other_fields(
    program: ExportedProgram,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[ExportedProgram, io.BytesIO], Any],
) -> None:
    types = [describe(cls) for cls in TYPES.values()]
    fields = next(fields for name, _, fields in types if name == "PayloadMeta")
    fields.append(("color", "str", None))
    monkeypatch.setattr(payloads, "SCHEMA", _native.Schema(types))
    with pytest.raises(UnsupportedError, match=r"PayloadMeta\.color"):
        write(program, io.BytesIO())


def test_tensors_that_cannot_be_written(tmp_path: Any) -> None:
    """The file stays as it was."""

    class Local(torch.Tensor):
        pass

    path = tmp_path / "state.pt2"
    state.write({"a": torch.ones(2)}, path)
    before = path.read_bytes()
    with pytest.raises((archive.SerializeError, pickle.PicklingError), match="cannot be pickled"):
        state.write({"a": torch.ones(3), "b": torch.ones(2).as_subclass(Local)}, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_tensors_of_the_older_format(program: ExportedProgram) -> None:
    records = records_of(saved_by_us(program))
    older = torch._export.serde.serialize.serialize(program).state_dict
    data = rewritten(saved_by_us(program), {"archive/data/weights/model.pt": older})
    assert "archive/data/weights/model.pt" not in records
    with pytest.raises(archive.ArchiveError, match="older format: load the program"):
        state.read(io.BytesIO(data))
    loaded = archive.load(io.BytesIO(data))
    assert torch.equal(loaded.state_dict["weight"], program.state_dict["weight"])


@pytest.mark.parametrize("machine", ["this one", "another"])
def test_models_that_were_compiled_for_another_machine(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, machine: str
) -> None:
    facts = {"AOTI_DEVICE_KEY": "cpu", **get_device_information("cpu")}
    key = list(facts)[-1]
    if machine == "another":
        facts[key] = "of another machine"
    loader = mock.Mock()
    loader.load_metadata_from_package.return_value = facts
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", loader)
    options = (False, 1, -1)
    messages = []
    for load in (load_compiled_model, torch_package._load_aoti):
        caplog.clear()
        load("path", "model", *options)
        messages.append([r.getMessage() for r in caplog.records if r.levelname == "WARNING"])
    assert len(messages[0]) == len(messages[1]) == (machine == "another")
    assert all(key in text and facts[key] in text for each in messages for text in each)


def zip_with_wide_numbers(**records: bytes) -> bytes:
    """A zip file that has the sizes of records in extra fields, as records above 4 GiB need."""
    buffer = io.BytesIO()
    with mock.patch.object(zipfile, "ZIP64_LIMIT", 1), zipfile.ZipFile(buffer, "w") as file:
        for name, data in records.items():
            file.writestr(f"model/{name}", data)
    return buffer.getvalue()


def test_numbers_of_records_in_extra_fields() -> None:
    records = {"version": b"3\n", "first": b"hello", "second": bytes(1000)}
    data = zip_with_wide_numbers(**records)
    assert data.count(b"\xff" * 8) >= len(records)  # both sizes are elsewhere
    ours, theirs = _native.ArchiveReader(data), torch._C.PyTorchFileReader(io.BytesIO(data))
    assert sorted(ours.records()) == sorted(theirs.get_all_records())
    for name, expected in records.items():
        assert ours.stored_bytes(name) == theirs.get_record(name) == expected


@pytest.mark.parametrize("kept", [0, 4, 8, 12])
def test_extra_fields_that_are_cut(kept: int) -> None:
    """The size in a field of wide numbers states fewer numbers."""
    data = bytearray(zip_with_wide_numbers(first=b"hello"))
    directory = data.rindex(b"PK\x01\x02")
    at = data.index(b"\x01\x00\x10\x00", directory)  # the field's tag and size
    data[at + 2 : at + 4] = kept.to_bytes(2, "little")
    with pytest.raises(_native.ArchiveError, match="is truncated"):
        _native.ArchiveReader(bytes(data))


@pytest.mark.parametrize(("start", "size"), [(0, 6), (6, 0), (5, 1), (1, 5), (2**63, 1)])
def test_parts_beyond_a_record(start: int, size: int) -> None:
    reader = _native.ArchiveReader(zip_with_wide_numbers(first=b"hello"))
    with pytest.raises(ValueError, match="'first' has 5 bytes, expected"):
        reader.read_into([("first", start, size, 0)], False, 1)
    assert reader.read_into([("first", 5, 0, 0)], True, 1) == [zlib.crc32(b"")]


class Doubled(torch.Tensor):
    """A subclass whose floating-point results are twice the results of a plain tensor."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            made = func(*args, **(kwargs or {}))
            is_float = isinstance(made, torch.Tensor) and made.is_floating_point()
            return made * 2 if is_float else made


class ReadsData(torch.nn.Module):
    """A strict export makes a constant of the data, which is the fake tensor of its trace."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Linear(3, 3).weight
        self.register_buffer("table", torch.arange(3.0).as_subclass(Doubled))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.table.data) @ self.weight


def write_state(program: ExportedProgram, path: str) -> None:
    state.write({**program.state_dict, **program.constants}, path)


WRITERS: dict[str, Callable[[ExportedProgram, str], Any]] = {
    "inline": archive.save,
    "safetensors": partial(archive.save, weights="safetensors"),
    "none": partial(archive.save, weights="none"),
    "stages": lambda program, path: pipeline.save_stages(program, path, 2),
    "state": write_state,
    "serialize": lambda program, path: serialize(program),
}


@pytest.mark.parametrize("decomposed", [False, True])
@pytest.mark.parametrize("writer", WRITERS)
def test_a_fake_tensor_beside_real_ones_is_refused(
    writer: str, decomposed: bool, tmp_path: Path
) -> None:
    """torch writes zeros."""
    program = export(ReadsData(), (torch.ones(3),), strict=True)
    if decomposed:
        program = program.run_decompositions()
    (fake,) = (name for name, value in program.constants.items() if is_fake(value))
    with pytest.raises(UnsupportedError, match=rf"{fake!r} is a fake tensor"):
        WRITERS[writer](program, str(tmp_path / "model.pt2"))
    assert not list(tmp_path.iterdir())


def test_a_fake_tensor_inside_of_a_subclass_is_refused(program: ExportedProgram) -> None:
    with FakeTensorMode():
        program.constants["pair"] = TwoTensor(torch.ones(2), torch.ones(2))
    with pytest.raises(UnsupportedError, match="'pair' is a fake tensor"):
        saved_by_us(program)


@pytest.mark.parametrize("weights", ["inline", "safetensors"])
def test_functions_of_a_subclass_do_not_change_what_is_written(
    weights: Any, tmp_path: Path
) -> None:
    model = torch.nn.BatchNorm1d(3).eval()
    program = export(model, (torch.ones(2, 3),), strict=False)
    values = torch.arange(3.0)
    program.state_dict["running_mean"] = values.as_subclass(Doubled)
    archive.save(program, tmp_path / "model.pt2", weights=weights)
    loaded = archive.load(tmp_path / "model.pt2")
    assert torch.equal(loaded.state_dict["running_mean"], values)
