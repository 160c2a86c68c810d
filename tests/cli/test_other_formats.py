"""Errors name other formats and a function that reads them; `inspect` shows weights."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch.export import ExportedProgram

import fxpress
from fxpress import archive, pipeline
from fxpress._tools.cli import app
from tests.support.command_line import assert_without_torch

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
STATE = {"a": torch.ones(3, 4), "b": torch.ones(2, dtype=torch.int8)}


def old_torch_save(path: Path) -> None:
    torch.save(STATE, path, _use_new_zipfile_serialization=False)


def torch_script(path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), path)


def zip_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("docs/read.me", "text " * 100)


def keras_file(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            file.writestr(name, "{}")


def written(data: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(data)


def old_pickle(value: Any, protocol: int) -> Callable[[Path], Any]:
    return written(pickle.dumps(value, protocol))


HEADER = b'{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
# A file -> what writes it, what it is, and what reads it.
FILES: dict[str, tuple[Callable[[Path], Any], str, str]] = {
    "new.pth": (lambda path: torch.save(STATE, path), "torch.save", "torch.load"),
    "module.pt": (lambda p: torch.save(torch.nn.ReLU(), p), "torch.save", "torch.load"),
    "old.pth": (old_torch_save, "torch.save", "torch.load"),
    "script.pt": (torch_script, "TorchScript", "torch.jit.load"),
    "a.pte": (written(b"\x1c\0\0\0ET12" + bytes(60)), "ExecuTorch", "ExecuTorch's runtime"),
    "a.safetensors": (lambda path: save_file(STATE, path), "safetensors", "load_file"),
    "cut.safetensors": (written(b"\x36" + bytes(7) + HEADER[:9]), "safetensors", "load_file"),
    "0.pkl": (old_pickle({"a": [1]}, 0), "a pickle", "pickle.load"),
    "1.pkl": (old_pickle((1, Path("a")), 1), "a pickle", "pickle.load"),
    "long.pkl": (old_pickle(["a" * 9000], 0), "a pickle", "pickle.load"),
    "a.onnx": (written(b"\x08\x0a\x12\x07pytorch:\x05"), "ONNX", "onnx.load"),
    "unnamed.onnx": (written(b"\x08\x09\x3a\x02\x0a\x00"), "ONNX", "onnx.load"),
    "a.gguf": (written(b"GGUF\3\0\0\0" + bytes(16)), "GGUF", "llama.cpp"),
    "a.h5": (written(b"\x89HDF\r\n\x1a\n" + bytes(40)), "HDF5", "h5py"),
    "user_block.h5": (written(bytes(512) + b"\x89HDF\r\n\x1a\n" + bytes(9)), "HDF5", "h5py"),
    "a.pkl": (written(pickle.dumps({"a": 1})), "pickle", "pickle.load"),
    "two.pkl": (written(pickle.dumps([1], 2)), "pickle", "pickle.load"),
    "a.npz": (lambda path: np.savez(path, a=np.ones(3)), "NumPy", "numpy.load"),
    "a.mlmodel": (written(b"\x08\x05\x12\x40\x0a" + bytes(70)), "Core ML", "coremltools"),
    "a.xz": (written(b"\xfd7zXZ\0" + bytes(40)), "xz", "xz"),
    "a.bz2": (written(b"BZh9" + bytes(40)), "bzip2", "bzip2"),
    "a.zst": (written(b"\x28\xb5\x2f\xfd" + bytes(40)), "Zstandard", "zstd"),
    "a.parquet": (written(b"PAR1" + bytes(40)), "Parquet", "pyarrow.parquet"),
    "a.so": (written(b"\x7fELF\2\1\1" + bytes(57)), "a shared library", "loader"),
    "a.keras": (keras_file, "Keras", "keras.models.load_model"),
    "a.zip": (zip_file, "a zip file", ""),
    "empty": (written(b""), "an empty file", ""),
}


@pytest.mark.parametrize("name", FILES)
def test_files(name: str, path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write, what, reader = FILES[name]
    file = tmp_path / name
    write(file)
    with pytest.raises(Exception) as torchs:
        torch.export.load(file)
    for source in (file, bytearray(file.read_bytes()), io.BytesIO(file.read_bytes())):
        for load in (fxpress.load, archive.load_pt2):
            with pytest.raises(archive.ArchiveError) as ours:
                load(source)
            assert isinstance(ours.value, torchs.type)
            assert what in str(ours.value)
            assert reader in str(ours.value)
    capsys.readouterr()
    target = str(tmp_path / "target")
    for arguments in (
        *(["hash"], ["diff", str(path)], ["inspect"], ["inspect", "--node", "add"], ["verify"]),
        *(["split", "--stages", "2", "-o", target], ["view", "--export", target], ["convert"]),
    ):
        further = [target] if arguments == ["convert"] else []
        status = app.run([*arguments, str(file), *further])
        out, error = capsys.readouterr()
        if (arguments, what) == (["inspect"], "safetensors") and name[0] == "a":
            assert (status, error) == (0, "")
            continue
        is_fault = arguments == ["verify"]  # an answer, which is printed
        said = (out if is_fault else error).replace(str(file), "FILE")
        assert (status, said.count("\n")) == (1 if is_fault else 2, 1)
        is_cut = arguments == ["inspect"] and name == "cut.safetensors"
        assert is_cut or (what in said and reader in said and "damaged" not in said), said
        assert len(said) < 130
    assert not Path(target).exists()


def test_files_without_a_known_format(tmp_path: Path) -> None:
    """Text, and a program of which the end is missing."""
    models = b"\x08\x05\x12", b"\x08\x00\x12"  # beginnings, of ONNX or Core ML
    for data in (b"text", b"PK\3\4" + bytes(99), b"\x80\x77", b"\x08", bytes(99), *models):
        with pytest.raises(archive.ArchiveError, match="not a zip archive, or is damaged"):
            fxpress.load(bytearray(data))


def test_a_package_of_aotinductor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w") as file:
        texts = {"archive_format": "pt2", "archive_version": "0", ".data/version": "3"}
        texts |= {"byteorder": "little", "data/aotinductor/model/model.wrapper.so": "\x7fELF"}
        for name, text in texts.items():
            file.writestr(f"model/{name}", text)
    with pytest.raises(archive.ArchiveError, match=r"AOTInductor.*aoti_load_package reads it"):
        fxpress.load(path)
    assert app.run(["hash", str(path)]) == 2
    assert "aoti_load_package reads it" in capsys.readouterr().err


def test_records_that_a_program_lacks(path: Path) -> None:
    """A file with records of a program stays a damaged program."""
    with zipfile.ZipFile(path) as whole:
        texts = {name: whole.read(name) for name in whole.namelist()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as edited:
        for name, text in texts.items():
            if not name.endswith("/archive_format"):
                edited.writestr(name, text)
    with pytest.raises(archive.ArchiveError, match="its version is missing"):
        fxpress.load(io.BytesIO(buffer.getvalue()))


@pytest.fixture
def folders(program: ExportedProgram, tmp_path: Path) -> dict[str, Path]:
    pipeline.save_stages(program, tmp_path / "stages", 2, inputs=program.example_inputs)
    dcp.save({**STATE, "step": {"n": 3}}, checkpoint_id=tmp_path / "dcp")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "manifest.json").write_text("{}")
    for folder, file in (("hub", "pytorch_model.bin"), ("tf", "saved_model.pb")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / file).write_bytes(b"\x08\x01")
    return {name: tmp_path / name for name in ("stages", "dcp", "site", "hub", "tf")}


def test_folders(folders: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (
        ("stages", "Is a directory: a folder of stages, which fxpress.pipeline.load_stage reads"),
        ("dcp", "a checkpoint of torch.distributed, which torch.distributed.checkpoint.load reads"),
        ("hub", "a folder of transformers, which its from_pretrained reads"),
        ("tf", "a SavedModel, which tensorflow.saved_model.load reads"),
        ("site", "Is a directory\n"),
    ):
        for load in (fxpress.load, archive.load_pt2):
            with pytest.raises(IsADirectoryError, match=said.strip()) as raised:
                load(folders[name])
            assert raised.value.filename == str(folders[name])
        for command in ("hash", "verify"):
            assert app.run([command, str(folders[name])]) == 2
            assert said in capsys.readouterr().err


def test_weights_are_shown(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.safetensors"
    save_file(STATE, file, {"format": "pt"})
    wanted = [("a", "float32", [3, 4], 48), ("b", "int8", [2], 2)]
    for path, kind in ((file, "safetensors file"), (folders["dcp"], "checkpoint of torch")):
        assert app.run(["inspect", str(path)]) == 0
        shown = capsys.readouterr().out
        assert kind in shown.splitlines()[0]
        assert "2 tensors" in shown.splitlines()[0]
        assert app.run(["inspect", str(path), "--weights"]) == 0
        assert "float32[3, 4]  48 B" in capsys.readouterr().out
        assert app.run(["inspect", str(path), "--json"]) == 0
        tensors = json.loads(capsys.readouterr().out)["tensors"]
        assert sorted(tuple(each.values()) for each in tensors) == wanted
    assert app.run(["inspect", str(folders["stages"]), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["stages"]
    assert [each["file"] for each in found] == ["stage_0.pt2", "stage_1.pt2"]
    assert [each["bytes"] for each in found] == [
        stage["state_bytes"]
        for stage in json.loads((folders["stages"] / "manifest.json").read_text())["stages"]
    ]
    assert_without_torch("inspect", str(file))
    assert app.run(["inspect", str(folders["site"])]) == 2


def test_a_long_name_does_not_lengthen_all_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, name = tmp_path / "a.safetensors", "n" * 50_000
    save_file({name: torch.ones(1)} | {f"t{i}": torch.ones(1) for i in range(40)}, file)
    assert app.run(["inspect", str(file), "--weights"]) == 0
    assert len(capsys.readouterr().out) < 50_000
    assert app.run(["inspect", str(file), "--json"]) == 0
    assert name in capsys.readouterr().out


def test_damaged_weights(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.safetensors").write_bytes(len(HEADER).to_bytes(8, "little") + HEADER + bytes(9))
    (folders["dcp"] / ".metadata").write_bytes(pickle.dumps(print))
    manifest = folders["stages"] / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"state_bytes"', '"state_bites"'))
    for path in (tmp_path / "a.safetensors", folders["dcp"], folders["stages"]):
        assert app.run(["inspect", str(path)]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"fxpress: {path}")
        assert "damaged" in error
        assert error.count("\n") == 1
