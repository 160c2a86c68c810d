"""Files that others write to during a load: without `mmap=True`, nothing is mapped."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpress import archive, state
from fxpress._files.archive import state_files
from fxpress._files.archive.tensor_file import TensorFile
from fxpress._files.remote.ranges import Files
from fxpress._files.serde.limits import Budget
from tests.support.exported import export

# The file loses its bytes when everything was read of it, and before the values are copied: a
# mapped one ends the process there (SIGBUS). Other places map by these functions.
CODE = """
import sys
import torch
from fxpress import archive, state
from fxpress._files.archive import state_files

path, source = sys.argv[1:]
expected = archive.load(path).state_dict
program = archive.load(path, load_weights=False)

def maps(*_args, **_kwargs):
    raise AssertionError("the file is mapped")

torch.UntypedStorage.from_file = torch.from_file = maps
copy = state_files.copy_values

def copy_from_a_file_that_is_gone(target, value):
    open(source, "wb").close()
    copy(target, value)

state_files.copy_values = copy_from_a_file_that_is_gone
assert not any(source in line for line in open("/proc/self/maps"))
state.load_into(program, source)
assert all(torch.equal(program.state_dict[name], value) for name, value in expected.items())
"""


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> Any:
        return self.linear(x)


@pytest.mark.parametrize("weights", ["inline", "safetensors"])
def test_a_file_that_is_cut_while_it_is_loaded(tmp_path: Path, weights: Any) -> None:
    pytest.importorskip("safetensors")
    path = tmp_path / "model.pt2"
    archive.save(export(Model(), (torch.ones(2, 64),)), path, weights=weights)
    source = tmp_path / "again.pt2"
    if weights == "inline":
        source.write_bytes(path.read_bytes())
    else:
        (source,) = tmp_path.glob("*.safetensors")
    command = [sys.executable, "-c", CODE, str(path), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_another_file_takes_the_name_after_the_check(tmp_path: Path, monkeypatch: Any) -> None:
    """The checked bytes are the bytes that are used."""
    good, bad = tmp_path / "good.pt2", tmp_path / "bad.pt2"
    program = export(Model(), (torch.ones(2, 64),))
    archive.save(program, good)
    weight = program.state_dict["linear.weight"].detach().numpy().tobytes()
    bad.write_bytes(good.read_bytes().replace(weight, weight[::-1]))
    loaded = archive.load(good, load_weights=False)
    reader = state_files.PT2ArchiveReader
    opened = []

    class Swapping(reader):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            opened.append(args[0])
            good.unlink()
            good.symlink_to(bad)

    monkeypatch.setattr(state_files, "PT2ArchiveReader", Swapping)
    state.load_into(loaded, good)
    assert opened == [good]
    assert torch.equal(loaded.state_dict["linear.weight"], program.state_dict["linear.weight"])


def safetensors_file(path: Path, header: Any, data: bytes = b"") -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@contextlib.contextmanager
def opened(path: Path) -> Iterator[TensorFile]:
    with contextlib.closing(Files()) as files:
        yield TensorFile(files.file(path), Budget(None, 0))


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ({"a": ENTRY}, 7),  # too short
        ({"a": ENTRY}, 9),  # bytes that are not a tensor's
        ({"a": ENTRY, "b": ENTRY}, 8),  # overlap
        ({"a": {**ENTRY, "data_offsets": [1, 9]}}, 9),  # a gap
        ({"a": {**ENTRY, "data_offsets": [-1, 7]}}, 7),
        ({"a": {**ENTRY, "shape": [3]}}, 8),
        ({"a": {**ENTRY, "shape": [-1, -2]}}, 8),
        ({"a": {**ENTRY, "shape": [1 << 70]}}, 8),
        ({"a": {"dtype": "F32"}}, 8),
        ({"a": 1}, 0),
        ({"__metadata__": []}, 0),
        ([], 0),
        (b"{", 0),
        (b"\xff", 0),
    ],
)
def test_damaged_safetensors_files(tmp_path: Path, header: Any, size: int) -> None:
    path = safetensors_file(tmp_path / "x.safetensors", header, bytes(size))
    with pytest.raises(archive.ArchiveError, match="is damaged"), opened(path):
        pass


def test_a_deep_header_of_a_safetensors_file(tmp_path: Path) -> None:
    path = safetensors_file(tmp_path / "x.safetensors", b"[" * 100_000, b"")
    with pytest.raises(archive.LimitError, match="depth"), opened(path):
        pass


def test_safetensors_files_of_every_dtype(tmp_path: Path) -> None:
    """The library writes them, and reads the same."""
    library = pytest.importorskip("safetensors.torch")
    tensors = {
        str(dtype): torch.arange(6).reshape(2, 3).to(dtype)
        for dtype in (
            *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64),
            *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
            *(torch.uint16, torch.uint32, torch.uint64),
            *(torch.float8_e4m3fn, torch.float8_e5m2),
        )
    }
    tensors["scalar"], tensors["none"] = torch.tensor(3.5), torch.empty(0, 4)
    path = tmp_path / "x.safetensors"
    library.save_file(tensors, path, metadata={"made": "here"})
    expected = library.load_file(path)
    with opened(path) as file:
        assert file.metadata == {"made": "here"}
        for name, value in expected.items():
            mine = file.read(name)
            assert mine.dtype == value.dtype
            assert mine.shape == value.shape
            assert torch.equal(
                mine.reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8)
            )
        with pytest.raises(KeyError):
            file.read("another")
