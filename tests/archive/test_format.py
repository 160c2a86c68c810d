"""The bytes and records of archives, and their other contents: rows Z-174 to Z-188."""

from __future__ import annotations

import ctypes
import io
import json
import logging
import os
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import export
from torch.export.pt2_archive import _package as torch_package
from torch.export.pt2_archive import constants as torch_names

import fxpress
from fxpress import _native, archive
from fxpress._files.format import names
from tests.support.archived import (
    assert_same_records,
    loaded_as_torch,
    records_of,
    saved_by_torch,
    saved_by_us,
    sharing,
)


class Views(torch.nn.Module):
    """Weights that share storages in every way."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.transposed = torch.nn.Parameter(self.linear.weight.t())
        self.register_buffer("empty", torch.ones(0, 3))
        whole = torch.arange(20.0)
        self.register_buffer("first", whole[2:7])
        self.register_buffer("second", whole[5:9])
        self.register_buffer("bits", torch.tensor([True, False]))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.constant = torch.ones(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total = self.linear(x).sum() + (x @ self.transposed).sum() + self.constant.sum()
        total = total + self.first.sum() + self.second.sum() + self.empty.sum()
        return total + self.bits.sum() + self.frozen.sum()


X = torch.ones(2, 3)


def test_names_of_records_are_torchs() -> None:
    shared = {name for name in vars(names) if name.isupper()} & {*vars(torch_names)}
    assert len(shared) == 10
    for name in shared:
        assert getattr(names, name) == getattr(torch_names, name), name
    theirs = {
        names.model_record: torch_names.MODELS_FILENAME_FORMAT,
        names.sample_inputs_record: torch_names.SAMPLE_INPUTS_FILENAME_FORMAT,
        names.weights_config_record: torch_names.WEIGHTS_CONFIG_FILENAME_FORMAT,
        names.constants_config_record: torch_names.CONSTANTS_CONFIG_FILENAME_FORMAT,
    }
    for ours, expected in theirs.items():
        assert ours("a") == expected.format("a")
    assert torch_names.TENSOR_CONSTANT_FILENAME_PREFIX == names.TENSOR_CONSTANT
    assert torch_names.WEIGHT_FILENAME_PREFIX == names.WEIGHT
    assert torch_names.CUSTOM_OBJ_FILENAME_PREFIX == names.CUSTOM_OBJECT
    opaque = getattr(torch_names, "OPAQUE_OBJ_FILENAME_PREFIX", names.OPAQUE_OBJECT)
    assert opaque == names.OPAQUE_OBJECT


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(Views(), (X,))


def test_z176_files_are_equal_byte_for_byte(program: Any, tmp_path: Path) -> None:
    for side, save in (("ours", archive.save), ("torch", torch.export.save)):
        (tmp_path / side).mkdir()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            save(program, tmp_path / side / "model.pt2", extra_files={"a": "b", "c/d": "ä"})
    ours, theirs = ((tmp_path / side / "model.pt2").read_bytes() for side in ("ours", "torch"))
    assert ours == theirs
    assert saved_by_us(program) == saved_by_torch(program)


def test_z177_weights_come_back_as_they_were(program: Any) -> None:
    for data in (saved_by_us(program), saved_by_torch(program)):
        loaded = archive.load(io.BytesIO(data))
        for name, value in program.state_dict.items():
            other = loaded.state_dict[name]
            assert torch.equal(other, value), name
            assert type(other) is type(value), name
            assert other.stride() == value.stride(), name
            assert other.storage_offset() == value.storage_offset(), name
            assert other.requires_grad == value.requires_grad, name
            assert other.is_leaf, name
        assert sharing(loaded.state_dict) == sharing(program.state_dict)
        assert torch.equal(loaded.module()(X), program.module()(X))


def test_z174_opset_version_is_kept(program: Any) -> None:
    data = saved_by_us(program, opset_version={"aten": 7, "mine": 3})
    stored = json.loads(records_of(data)["archive/models/model.json"])
    assert stored["opset_version"] == {"aten": 7, "mine": 3}
    archive.load(io.BytesIO(data))


@pytest.mark.parametrize("value", [None, torch.nn.Linear(1, 1), "model"])
def test_z174_only_programs_are_saved(value: Any, tmp_path: Path) -> None:
    for save in (archive.save, torch.export.save):
        with pytest.raises(TypeError, match="must be an instance of 'ExportedProgram'"):
            save(value, tmp_path / "x.pt2")
    assert os.listdir(tmp_path) == []


def test_z175_other_names_give_a_warning(
    program: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "fxpress"):
        archive.save(program, tmp_path / "model.zip")
    assert "Expect archive file to be a file ending in .pt2" in caplog.text
    assert torch.equal(archive.load(tmp_path / "model.zip").module()(X), program.module()(X))


def test_the_warning_for_other_sources_is_short(
    program: Any, caplog: pytest.LogCaptureFixture
) -> None:
    data = bytearray(saved_by_us(program))
    for source in (data, memoryview(data)):
        archive.load_pt2(source)
    lines = [text for text in caplog.text.splitlines() if "f should be a buffer" in text]
    assert len(lines) == 2
    assert all(f" of {len(data) / 1000:.3g} kB}}" in line and len(line) < 200 for line in lines)


def test_z175_nothing_to_save() -> None:
    for package in (archive.package_pt2, torch_package.package_pt2):
        with pytest.raises(AssertionError, match="do not plan on saving anything"):
            package(io.BytesIO())


def test_z178_parts_of_storages_on_the_way(program: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns that it may be wrong
        saved_by_us(program)


def test_z178_conjugated_and_negated_weights() -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("conjugated", torch.tensor([1 + 2j, 3 - 4j]).conj())
            self.register_buffer("negated", torch.tensor([1 + 2j, 3 - 4j]).conj().imag)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.conjugated.real + self.negated

    program = export(Model(), (torch.ones(2),))
    loaded = archive.load(io.BytesIO(saved_by_us(program)))
    assert torch.equal(loaded.state_dict["conjugated"], program.state_dict["conjugated"])
    assert torch.equal(loaded.state_dict["negated"], program.state_dict["negated"])
    assert torch.equal(loaded.module()(torch.ones(2)), program.module()(torch.ones(2)))


@pytest.mark.filterwarnings("ignore:Unable to execute")  # such a graph has no source text
def test_z179_script_objects_that_are_literals() -> None:
    class Sine(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.sin()

    program = export(Sine(), (X,))
    weight = torch.quantize_per_tensor(torch.ones(3, 3), 0.1, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(weight, None)
    program.constants["kept"] = packed
    sine = next(node for node in program.graph.nodes if node.op == "call_function")
    with program.graph.inserting_after(sine):
        function = torch.ops.quantized.linear_dynamic.default
        linear = program.graph.call_function(function, (sine, packed))
        linear.meta["val"] = sine.meta["val"]
    data = saved_by_us(program)
    assert "archive/data/constants/custom_obj_1" in records_of(data)
    with pytest.raises(archive.SerializeError, match=r"custom_obj_0.*allow_pickle"):
        archive.load(data)
    for loaded in (archive.load(data, allow_pickle=True), torch.export.load(io.BytesIO(data))):
        assert set(loaded.constants) == {"kept", "_custom_obj_0"}
        assert any(node.target is function for node in loaded.graph.nodes)


@pytest.mark.filterwarnings("ignore:No complete tensor found")  # torch's load
def test_z179_constants_of_other_types() -> None:
    program = export(Views(), (X,))
    program.constants["odd"] = 3
    for save in (archive.save, torch.export.save):
        with pytest.raises(Exception, match=r"odd|Unsupported constant type"):
            save(program, io.BytesIO())


def test_z182_records_without_bytes_are_zeros(program: Any) -> None:
    records = records_of(saved_by_us(program))
    records["archive/data/weights/weight_0"] = b""
    loaded = loaded_as_torch(zipped(records))
    assert loaded is not None
    assert not loaded.state_dict["linear.weight"].any()


def zipped(records: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file as other programs write it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        for name, data in records.items():
            file.writestr(name, data)
    return buffer.getvalue()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_zip_files_of_other_programs(program: Any, method: int) -> None:
    data = zipped(records_of(saved_by_us(program)), method)
    loaded = loaded_as_torch(data)
    assert loaded is not None
    archive.verify(bytearray(data))


@pytest.mark.parametrize("given", [{}, {"a": "", "other": "kept"}])
def test_z185_extra_files_are_filled_in(program: Any, given: dict[str, str]) -> None:
    data = saved_by_us(program, extra_files={"a": "ä", "folder/b": ""})
    archive.load(io.BytesIO(data), extra_files=given)
    assert {**given, "a": "ä", "folder/b": ""} == given


def test_z186_writer_and_reader(tmp_path: Path) -> None:
    (tmp_path / "folder" / "deep").mkdir(parents=True)
    (tmp_path / "folder" / "deep" / "file").write_bytes(b"1")
    (tmp_path / "folder" / "other").write_bytes(b"2" * 5_000_000)
    written = {}
    for side, module in (("ours", archive), ("torch", torch_package)):
        path = str(tmp_path / f"{side}.pt2")
        with module.PT2ArchiveWriter(path) as writer:
            writer.write_bytes("a/b", b"bytes")
            writer.write_string("text", "ä")
            writer.write_folder("copied", str(tmp_path / "folder"))
            assert writer.has_record("text")
            assert not writer.has_record("tex")
            assert writer.count_prefix("a") == 1
            for method, value in ((writer.write_bytes, "x"), (writer.write_string, b"x")):
                with pytest.raises(AssertionError, match="Expected"):
                    method("c", value)
            with pytest.raises(AssertionError, match="is not a valid file path"):
                writer.write_file("c", str(tmp_path / "none"))
            with pytest.raises(AssertionError, match="is not a valid directory path"):
                writer.write_folder("c", str(tmp_path / "none"))
            with pytest.raises(RuntimeError, match="Tried to serialize file twice"):
                writer.write_bytes("text", b"")
        written[side] = Path(path).read_bytes().replace(side.encode(), b"root")
        for reading in (archive, torch_package):
            with reading.PT2ArchiveReader(path) as reader:
                assert reader.read_bytes("a/b") == b"bytes"
                assert reader.read_string("text") == "ä"
                assert reader.archive_version() == 0
                assert sorted(reader.get_file_names()) == sorted(
                    name.partition("/")[2] for name in records_of(Path(path).read_bytes())
                )
            assert reading.is_pt2_package(path)
            assert reading.is_pt2_package(Path(path).read_bytes())
            assert not reading.is_pt2_package(b"no zip")
            assert not reading.is_pt2_package(str(tmp_path / "none"))


def test_z186_the_archive_is_complete_also_after_an_error(tmp_path: Path) -> None:
    for module in (archive, torch_package):
        path = str(tmp_path / "model.pt2")
        with pytest.raises(KeyError), module.PT2ArchiveWriter(path) as writer:
            writer.write_bytes("a", b"1")
            raise KeyError
        assert archive.PT2ArchiveReader(path).read_bytes("a") == b"1"


def test_z186_other_formats_are_refused() -> None:
    buffer = io.BytesIO()
    with archive.PT2ArchiveWriter(buffer) as writer:
        writer.write_string("archive_format", "pt3")
    for module in (archive, torch_package):
        buffer.seek(0)
        with pytest.raises(AssertionError, match="Invalid archive format"):
            module.PT2ArchiveReader(buffer)


def test_z187_several_programs_and_files_of_others(program: Any, tmp_path: Path) -> None:
    class Other(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2

    other = export(Other(), (X,))
    (tmp_path / "code.cpp").write_text("int x;")
    written = {}
    for side, module in (("ours", archive), ("torch", torch_package)):
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            module.package_pt2(
                buffer,
                exported_programs={"model": program, "other": other},
                extra_files={"a": "b"},
                executorch_files={"c.pte": b"\x00"},
            )
        written[side] = buffer.getvalue()
    assert_same_records(written["ours"], written["torch"])
    contents = archive.load_pt2(io.BytesIO(written["torch"]))
    assert isinstance(contents, torch_package.PT2ArchiveContents)
    assert list(contents.exported_programs) == ["model", "other"]
    assert contents.extra_files == {"a": "b"}
    assert contents.aoti_runners == {}
    assert torch.equal(contents.exported_programs["other"].module()(X), X * 2)


def test_z187_files_of_aotinductor(tmp_path: Path) -> None:
    for name in ("model.so", "model.cpp", "custom_obj_0"):
        (tmp_path / name).write_text(name)
    paths = [str(tmp_path / name) for name in ("model.so", "model.cpp", "custom_obj_0")]
    from torch.export.pt2_archive._package_weights import TensorProperties, Weights

    whole = torch.arange(6.0)
    weights = Weights(
        {name: (t, TensorProperties(t)) for name, t in (("w", whole), ("part", whole[2:4]))}
    )
    files = {"one": [*paths, "", weights], "two": paths[:1]}
    written = {}
    for side, module in (("ours", archive), ("torch", torch_package)):
        buffer = io.BytesIO()
        module.package_pt2(buffer, aoti_files=files)
        written[side] = buffer.getvalue()
    assert_same_records(written["ours"], written["torch"])


def test_weights_of_compiled_code(tmp_path: Path) -> None:
    from torch.export.pt2_archive._package_weights import TensorProperties, Weights

    from fxpress._files.archive.compiled import compiled_weights

    (tmp_path / "model.so").write_text("no library")
    whole = torch.arange(6.0).reshape(2, 3)
    parts = {"whole": whole, "part": whole[1:, :2], "turned": whole.t()}
    weights = Weights({name: (t, TensorProperties(t)) for name, t in parts.items()})
    library = str(tmp_path / "model.so")
    buffer = io.BytesIO()
    torch_package.package_pt2(buffer, aoti_files={"one": [library, weights], "two": [library]})
    found = compiled_weights(archive.PT2ArchiveReader(buffer), ["one", "two", "three"])
    assert (list(found), found["two"]) == (["one", "two"], {})
    for name, value in parts.items():
        assert torch.equal(found["one"][name], value)
        assert found["one"][name].stride() == value.stride()
    assert len({value.untyped_storage().data_ptr() for value in found["one"].values()}) == 1


@pytest.mark.parametrize("allow_pickle", [False, True])
def test_compiled_code_is_allowed_by_name(tmp_path: Path, allow_pickle: bool) -> None:
    """The archive is refused before anything else is read, and no library is opened."""
    (tmp_path / "model.so").write_bytes(b"no library")
    buffer = io.BytesIO()
    archive.package_pt2(buffer, aoti_files={"one": [str(tmp_path / "model.so")]})
    found = (
        r"compiled code, of the models \['one'\]: 'data/aotinductor/one/model.so'.*_compiled=True"
    )
    with pytest.raises(archive.SerializeError, match=found):
        archive.load_pt2(buffer, allow_pickle=allow_pickle)
    with pytest.raises(RuntimeError) as caught:
        archive.load_pt2(buffer, allow_compiled=True)
    assert not isinstance(caught.value, archive.SerializeError)  # of torch's loader
    with fxpress.installed():  # torch's name stands for ours
        with pytest.raises(archive.SerializeError, match="allow_compiled"):
            torch_package.load_pt2(buffer)
        with pytest.raises(RuntimeError, match="Model other not found"):
            torch._inductor.package.load_package(buffer, "other")


def test_z187_a_program_of_another_name(program: Any) -> None:
    buffer = io.BytesIO()
    archive.package_pt2(buffer, exported_programs={"other": program})
    for load in (archive.load, torch.export.load):
        buffer.seek(0)
        with pytest.raises(KeyError, match="model"):
            load(buffer)


def test_z187_weights_for_models_that_are_not_there() -> None:
    contents = torch_package.PT2ArchiveContents({}, {}, {})
    for module in (archive, torch_package):
        with pytest.raises(RuntimeError, match="Model none not found"):
            module.load_weights_to_pt2_contents(contents, {"none": {}})


def legacy_file(program: Any, **changes: bytes | None) -> bytes:
    """A file as torch 2.6 wrote it."""
    from torch._export.serde.schema import SCHEMA_VERSION

    artifact = torch._export.serde.serialize.serialize(program)
    records: dict[str, bytes | None] = {
        "version": ".".join(map(str, SCHEMA_VERSION)).encode(),
        "serialized_exported_program.json": artifact.exported_program,
        "serialized_state_dict.pt": artifact.state_dict,
        "serialized_constants.pt": artifact.constants,
        "serialized_example_inputs.pt": artifact.example_inputs,
        "extra_files/a": b"b",
        **changes,
    }
    return zipped({name: data for name, data in records.items() if data is not None})


def test_z188_files_of_the_older_format(program: Any) -> None:
    data = legacy_file(program)
    for load in (archive.load, torch.export.load):
        extra = {"x": "y"}
        loaded = load(io.BytesIO(data), extra_files=extra)
        assert extra == {"x": "y", "a": "b"}
        assert torch.equal(loaded.module()(X), program.module()(X))


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"version": b"1.2.3"}, AssertionError, "incorrect length"),
        ({"version": b"99.2"}, RuntimeError, "99"),
        ({"version": None}, RuntimeError, "version|deserializing"),
        ({"serialized_state_dict.pt": None}, Exception, "state_dict"),
        ({"serialized_exported_program.json": None}, Exception, "exported_program"),
    ],
)
def test_z188_damaged_files_of_the_older_format(
    program: Any, changes: dict[str, bytes | None], error: type[Exception], match: str
) -> None:
    if changes.get("version") == b"99.2":
        parts = len(torch._export.serde.schema.SCHEMA_VERSION)
        changes = {"version": ".".join(["99"] * parts).encode()}
    data = legacy_file(program, **changes)
    for load in (archive.load, torch.export.load):
        with pytest.raises(error, match=match):
            load(io.BytesIO(data))


def test_older_records_of_weights_and_constants(program: Any) -> None:
    artifact = torch._export.serde.serialize.serialize(program)
    records = records_of(saved_by_us(program))
    for kind, data in (("weights", artifact.state_dict), ("constants", artifact.constants)):
        del records[f"archive/data/{kind}/model_{kind}_config.json"]
        records[f"archive/data/{kind}/model.pt"] = data
    assert loaded_as_torch(zipped(records)) is not None


def test_installed_functions_are_ours(program: Any, tmp_path: Path) -> None:
    import fxpress

    path = str(tmp_path / "model.pt2")
    with fxpress.installed():
        torch.export.save(program, path, opset_version={"aten": 1})
        loaded = torch.export.load(path)
    stored = json.loads(records_of(Path(path).read_bytes())["model/models/model.json"])
    assert stored["opset_version"] == {"aten": 1}  # Z-174: torch's own would have dropped it
    assert torch.equal(loaded.module()(X), program.module()(X))
    assert fxpress.save is archive.save
    assert fxpress.load is archive.load


def test_paths_buffers_and_open_files(program: Any, tmp_path: Path) -> None:
    expected = program.module()(X)
    path = tmp_path / "model.pt2"
    archive.save(program, path)
    data = path.read_bytes()
    with open(tmp_path / "behind", "wb") as file:
        file.write(b"in front")
    with open(tmp_path / "behind", "ab") as file:
        file.write(data)
    for source in (
        str(path),
        os.fsencode(path),
        path,
        io.BytesIO(data),
        bytearray(data),
        memoryview(data),
    ):
        assert torch.equal(archive.load(source).module()(X), expected)
    with open(path, "rb") as file:
        assert torch.equal(archive.load(file).module()(X), expected)
    with open(tmp_path / "behind", "rb") as file:
        file.seek(len(b"in front"))
        assert torch.equal(archive.load(file).module()(X), expected)
    with zipfile.ZipFile(io.BytesIO(zipped({"inside": data}))).open("inside") as stream:
        assert torch.equal(archive.load(stream).module()(X), expected)


def test_tensors_of_classes_of_their_own() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.weight

    program = export(Model(), (torch.ones(2),))
    program.state_dict["weight"] = torch.nn.Parameter(TwoTensor(torch.ones(2), torch.zeros(2)))
    data = saved_by_us(program)
    assert_same_records(data, saved_by_torch(program))
    with pytest.raises(archive.SerializeError, match=r"weight_0.*allow_pickle"):
        archive.load(io.BytesIO(data))
    loaded = archive.load(io.BytesIO(data), allow_pickle=True)
    assert isinstance(loaded.state_dict["weight"].data, TwoTensor)


def test_fake_weights(program: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        fake = export(Views(), (torch.ones(2, 3),))
    data = saved_by_us(fake)
    assert_same_records(data, saved_by_torch(fake))
    loaded = archive.load(io.BytesIO(data))
    # torch's share the requires_grad of the first one, too.
    for name, value in fake.state_dict.items():
        assert loaded.state_dict[name].shape == value.shape
        assert loaded.state_dict[name].requires_grad == value.requires_grad
        assert not loaded.state_dict[name].any()


def test_native_copies_know_the_size_of_a_record() -> None:
    buffer = io.BytesIO()
    with archive.PT2ArchiveWriter(buffer) as writer:
        writer.write_bytes("three", b"abc")
    reader = _native.ArchiveReader(buffer.getvalue())
    name = next(name for name in reader.records() if name.endswith("three"))
    for size in (0, 2, 4, 2**63):
        with pytest.raises(ValueError, match="has 3 bytes, but the memory to fill has"):
            reader.copy_stored(name, size, 0)
    with pytest.raises(KeyError):
        reader.copy_stored("none", 3, 0)
    memory = (ctypes.c_char * 3)()
    reader.copy_stored(name, 3, ctypes.addressof(memory))
    assert memory.raw == b"abc"
