"""How `load` loads: devices, files in memory, weights later."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.export import export

from fxpress import UnsupportedError, archive, state
from fxpress._files.archive import compiled
from fxpress._files.archive.tensors import is_of_subclass, without_lazy_bits
from fxpress._torch.fx import is_fake
from fxpress._torch.versions import features
from tests.support.archived import records_of, rewritten, saved_by_us, sharing
from tests.support.versions import needs


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)
        self.turned = torch.nn.Parameter(self.linear.weight.t())
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("count", torch.tensor(3))
        self.constant = torch.arange(3.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x + self.constant) + torch.zeros(4, device=x.device)
        return y.sum() + (x @ self.turned).sum() + self.frozen.sum() + self.count


X = torch.ones(2, 3)


@pytest.fixture(scope="module")
def program() -> torch.export.ExportedProgram:
    return export(Model(), (X,))


@pytest.fixture
def path(program: Any, tmp_path: Path) -> Path:
    archive.save(program, tmp_path / "model.pt2")
    return tmp_path / "model.pt2"


def assert_same_state(ours: Any, program: Any) -> None:
    for name, value in program.state_dict.items():
        other = ours.state_dict[name]
        assert torch.equal(other, value)
        assert type(other) is type(value)
        assert other.stride() == value.stride()
        assert other.requires_grad == value.requires_grad
    assert sharing(ours.state_dict) == sharing(program.state_dict)
    assert torch.equal(ours.module()(X), program.module()(X))


def test_files_in_memory(program: Any, path: Path) -> None:
    loaded = archive.load(path, mmap=True)
    assert_same_state(loaded, program)
    before = path.read_bytes()
    with torch.no_grad():
        loaded.state_dict["linear.weight"].zero_()
    assert path.read_bytes() == before
    assert not loaded.state_dict["turned"].any()
    os.unlink(path)
    assert torch.equal(loaded.state_dict["linear.bias"], program.state_dict["linear.bias"])
    buffer = io.BytesIO()
    archive.save(loaded, buffer)
    buffer.seek(0)
    assert not archive.load(buffer).state_dict["linear.weight"].any()


def test_files_in_memory_stay_as_long_as_a_weight(path: Path, program: Any) -> None:
    weight = archive.load(path, mmap=True).state_dict["linear.weight"].detach()
    assert any("model.pt2" in line for line in Path("/proc/self/maps").read_text().splitlines())
    assert torch.equal(weight, program.state_dict["linear.weight"])
    del weight
    import gc

    gc.collect()
    gc.collect()
    assert not any(str(path) in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_only_paths_can_be_mapped(path: Path) -> None:
    for load in (archive.load, archive.load_pt2, state.read):
        with pytest.raises(ValueError, match="f must be a path"):
            load(io.BytesIO(path.read_bytes()), mmap=True)


def test_damage_in_mapped_files_is_found_when_asked_for(path: Path, program: Any) -> None:
    data = bytearray(path.read_bytes())
    weight = program.state_dict["linear.weight"].detach().numpy().tobytes()
    data[data.index(weight)] ^= 1
    path.write_bytes(data)
    archive.load(path, mmap=True)
    for check in (archive.verify, archive.load):
        with pytest.raises(archive.ArchiveError, match="weights/weight_"):
            check(path)


@pytest.mark.parametrize("location", ["cpu", torch.device("cpu"), {"cpu": "cpu"}, {"cuda": "cpu"}])
def test_locations(program: Any, path: Path, location: Any) -> None:
    assert_same_state(archive.load(path, map_location=location), program)


def test_a_program_of_a_device_that_is_not_here(program: Any) -> None:
    data = saved_by_us(program)
    old, new = b'"type": "cpu", "index": null', b'"type": "cuda", "index": 0'
    records = {
        name: content.replace(old, new)
        for name, content in records_of(data).items()
        if name.endswith(".json")
    }
    data = rewritten(data, records)
    loaded = archive.load(data, map_location="cpu")
    assert_same_state(loaded, program)
    for node in loaded.graph.nodes:
        assert node.kwargs.get("device", torch.device("cpu")) in (torch.device("cpu"), "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match=r"(?i)(cuda|nvidia).*map_location"):
            archive.load(data)


@pytest.mark.parametrize("kind", ["hpu", "xpu", "fpga", "privateuseone"])
@pytest.mark.parametrize("given", [False, True], ids=["in_the_file", "given"])
def test_devices_that_this_torch_does_not_have(program: Any, kind: str, given: bool) -> None:
    """torch raises RuntimeError, too; some are a changed byte away from cpu."""
    data = saved_by_us(program)
    if not given:
        (name,) = (name for name in records_of(data) if name.endswith("model_weights_config.json"))
        data = rewritten(data, {name: records_of(data)[name].replace(b"cpu", kind.encode())})
    with pytest.raises(UnsupportedError, match=f"'{kind}', which this process cannot use"):
        archive.load(data, map_location=kind if given else None)
    assert archive.load(data, map_location="cpu").state_dict


@pytest.mark.parametrize("mmap", [False, True])
def test_to_the_meta_device(path: Path, mmap: bool) -> None:
    loaded = archive.load(path, map_location="meta", mmap=mmap)
    assert {value.device.type for value in loaded.state_dict.values()} == {"meta"}
    assert loaded.module()(X.to("meta")).device.type == "meta"


@pytest.mark.parametrize("location", [3, lambda storage, place: storage, ["cpu"]])
def test_what_is_no_location(path: Path, location: Any) -> None:
    for load in (archive.load, archive.load_pt2, state.read):
        with pytest.raises(TypeError, match="expected map_location to be a device"):
            load(path, map_location=location)


@pytest.mark.parametrize("where", ["inline", "safetensors", "none"])
def test_structure_first_and_weights_later(program: Any, tmp_path: Path, where: Any) -> None:
    path = tmp_path / "model.pt2"
    archive.save(program, path, weights=where)
    loaded = archive.load(path, load_weights=False)
    for name, value in program.state_dict.items():
        other = loaded.state_dict[name]
        assert other.device.type == "meta"
        assert type(other) is type(value)
        assert (other.shape, other.stride()) == (value.shape, value.stride())
        assert other.requires_grad == value.requires_grad
    archive.save(program, tmp_path / "whole.pt2")
    source: Any = {
        "inline": path,
        "safetensors": next(tmp_path.glob("model.*.safetensors"), None),
        "none": dict(program.state_dict),
    }[where]
    state.load_into(loaded, source)
    assert_same_state(loaded, program)
    again = archive.load(path, load_weights=False)
    state.load_into(again, io.BytesIO((tmp_path / "whole.pt2").read_bytes()), device="cpu")
    assert_same_state(again, program)


def test_values_into_memory_that_is_there(program: Any, path: Path) -> None:
    loaded = archive.load(path)
    before = {name: value.data_ptr() for name, value in loaded.state_dict.items()}
    values = {name: torch.ones_like(value) for name, value in loaded.state_dict.items()}
    state.load_into(loaded, {**values, "another": torch.ones(1)})
    assert {name: value.data_ptr() for name, value in loaded.state_dict.items()} == before
    assert all((value == 1).all() for value in loaded.state_dict.values())


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"count": None}, "expected a value for 'count', found none"),
        ({"count": torch.tensor([3])}, "'count'"),
        ({"count": torch.tensor(3.0)}, "'count'"),
    ],
)
def test_values_that_do_not_fit(path: Path, program: Any, change: Any, match: str) -> None:
    values = {**program.state_dict, **change}
    values = {name: value for name, value in values.items() if value is not None}
    loaded = archive.load(path, load_weights=False)
    before = dict(loaded.state_dict)
    with pytest.raises(archive.SerializeError, match=match):
        state.load_into(loaded, values)
    assert all(loaded.state_dict[name] is value for name, value in before.items())


def test_load_into_of_files_that_are_none(path: Path, tmp_path: Path) -> None:
    loaded = archive.load(path, load_weights=False)
    (tmp_path / "x.safetensors").write_bytes(b"")
    for source, error in (
        (tmp_path / "none.pt2", FileNotFoundError),
        (tmp_path / "none.safetensors", FileNotFoundError),
        (tmp_path / "x.safetensors", archive.ArchiveError),
        (bytearray(b"x"), archive.ArchiveError),
        (b"x", FileNotFoundError),
    ):
        with pytest.raises(error):
            state.load_into(loaded, source)


def test_damage_in_what_is_loaded_into_a_program(path: Path, program: Any) -> None:
    loaded = archive.load(path, load_weights=False)
    data = bytearray(path.read_bytes())
    data[data.index(program.state_dict["linear.weight"].detach().numpy().tobytes())] ^= 1
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(archive.ArchiveError, match="weights/weight_"):
            state.load_into(loaded, source)
    assert {value.device.type for value in loaded.state_dict.values()} == {"meta"}


def test_buffers_are_let_go_of(path: Path) -> None:
    buffer = io.BytesIO(path.read_bytes())
    archive.load(buffer)
    buffer.truncate(100)
    with pytest.raises(archive.ArchiveError):
        archive.load(buffer)
    buffer.close()


def test_readers_keep_what_they_read(path: Path) -> None:
    with open(path, "rb") as file:
        reader = archive.PT2ArchiveReader(file)
        assert reader.read_string("archive_version") == "0"
        reader.close()
        with pytest.raises(ValueError, match="closed"):
            reader.read_string("archive_version")


def test_files_that_are_unpacked_on_the_way(path: Path, program: Any, tmp_path: Path) -> None:
    import gzip

    with gzip.open(tmp_path / "model.gz", "wb") as packed:
        packed.write(path.read_bytes())
    with gzip.open(tmp_path / "model.gz") as packed:
        assert_same_state(archive.load(packed), program)


def test_names_of_folders_entries(path: Path, program: Any) -> None:
    with os.scandir(path.parent) as entries:
        entry = next(e for e in entries if e.name == path.name)
    for value in (archive.load(entry, mmap=True).state_dict, state.read(entry, mmap=True)):
        assert torch.equal(value["linear.bias"], program.state_dict["linear.bias"])


def test_a_file_that_is_replaced_while_it_is_read(path: Path, program: Any) -> None:
    with archive.PT2ArchiveReader(path) as reader:
        before = path.read_bytes()
        path.unlink()
        path.write_bytes(bytes(len(before)))
        assert bytes(reader.mapped()) == before


def test_a_copy_of_the_archive_alone(path: Path, tmp_path: Path) -> None:
    data = path.read_bytes()
    (tmp_path / "behind").write_bytes(b"in front" + data)
    with open(tmp_path / "behind", "rb") as file:
        file.seek(len(b"in front"))
        for source in (file, bytearray(data), path):
            copy = io.BytesIO()
            with archive.PT2ArchiveReader(source) as reader:
                reader.copy_to(copy)
            assert copy.getvalue() == data


class Loader:
    """Arguments of torch's loader of compiled models."""

    asked: ClassVar[list[tuple[Any, ...]]] = []

    @staticmethod
    def load_metadata_from_package(path: str, model: str) -> dict[str, str]:
        return {}

    def __init__(self, *given: Any) -> None:
        self.asked.append(given)


def test_streams_of_compiled_models(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    has_streams = features.compiled_models_follow_streams
    monkeypatch.setattr(torch._C._aoti, "AOTIModelPackageLoader", Loader)
    monkeypatch.setattr(Loader, "asked", [])
    (tmp_path / "model.so").write_bytes(b"code")
    path = tmp_path / "model.pt2"
    archive.package_pt2(path, aoti_files={"model": [str(tmp_path / "model.so")]})
    archive.load_pt2(path, allow_compiled=True)
    expected = (str(path), "model", False, 1, -1)
    assert Loader.asked.pop() == (*expected, *([False] if has_streams else []))
    for load in (archive.load_pt2, compiled.load_package):
        options = {"allow_compiled": True} if load is archive.load_pt2 else {}
        if has_streams:
            load(path, use_stream_affinity=True, **options)
            assert Loader.asked.pop() == (*expected, True)
        else:
            with pytest.raises(UnsupportedError, match="does not have use_stream_affinity"):
                load(path, use_stream_affinity=True, **options)
            assert Loader.asked == []


@needs("fake_tensors_of_cpp")
def test_fake_tensors_of_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such tensors are plain tensors for Python, and have no bytes to save."""
    fake, real = torch.ones(3), torch.ones(3)
    monkeypatch.setattr(torch._C, "_is_fake_tensor", lambda tensor: tensor is fake)
    assert [is_fake(value) for value in (fake, real, 3)] == [True, False, False]
    assert is_of_subclass(fake) is False
    assert without_lazy_bits(fake) is fake


def test_fake_tensors_of_python() -> None:
    with torch._subclasses.FakeTensorMode():
        assert is_fake(torch.ones(3))
    assert not is_fake(torch.ones(3))


class OwnParameter(torch.nn.Parameter):  # type: ignore[misc]
    pass


def test_parameters_of_a_class_of_their_own_get_memory_as_parameters() -> None:
    class Scale(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = OwnParameter(torch.ones(3, device="meta"), requires_grad=False)
            self.plain = torch.nn.Parameter(torch.ones(3, device="meta"))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.own + self.plain

    program = torch.export.export(Scale(), (torch.ones(3, device="meta"),))
    values = {"own": torch.arange(3.0), "plain": torch.ones(3)}
    state.load_into(program, values)
    for name, value in program.state_dict.items():
        assert isinstance(value, torch.nn.Parameter)
        assert value.device.type == "cpu"
        assert value.requires_grad == (name == "plain")
        assert torch.equal(value, values[name])
