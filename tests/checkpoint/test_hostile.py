"""Damaged files, and files that were made to do harm: one clear error, and nothing has changed."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import time
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

import fxpress
from fxpress import archive
from fxpress import state as states
from fxpress._distributed.checkpoint import torch_files
from fxpress._distributed.checkpoint.programs import ReaderOptions
from fxpress._distributed.checkpoint.sources import main_file, read_weights
from fxpress._distributed.stages.save import save_stages
from fxpress._files.serde.artifacts import save_artifact
from fxpress.checkpoint import ArchiveReader, ArchiveWriter, convert_weights
from tests.support.called import Called
from tests.support.checkpoints import assert_same, blank, load, save, tied_program
from tests.support.process import peak_of_memory
from tests.support.records import read_records

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
INDEX = "model.safetensors.index.json"


def some_state() -> dict[str, Tensor]:
    torch.manual_seed(4)
    return {"a": torch.randn(40, 30), "b": torch.randn(7), "n": torch.tensor(3)}


def refused(path: Path, state: dict[str, Tensor], **options: Any) -> str:
    """Load a state from a file that is refused; return the text of the error."""
    target = blank(state)
    before = {name: value.clone() for name, value in target.items()}
    with pytest.raises(CheckpointException) as raised:
        load(target, path, **options)
    assert_same(target, before)
    ((cause, _),) = raised.value.failures.values()
    assert isinstance(cause, (fxpress.Error, OSError, AssertionError)), cause
    assert isinstance(cause, (fxpress.Error, OSError)) or "read failed" in str(cause), cause
    return str(cause)


def index_of(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / INDEX).read_text())
    return said


def saved(folder: Path) -> dict[str, Any]:
    """Save a state; return its index."""
    save(some_state(), ArchiveWriter(folder, file_bytes=1000))
    return index_of(folder)


def _edit(*path: Any, value: Any) -> Callable[[Any], None]:
    def edit(said: Any) -> None:
        for key in path[:-1]:
            said = said[key]
        if value is None:
            del said[path[-1]]
        else:
            said[path[-1]] = value

    return edit


OURS = "fxpress"
EDITS = {
    "no number": (_edit(OURS, "number", value=None), "damaged"),
    "another save's number": (_edit(OURS, "number", value="0" * 32), "belongs to another"),
    "another format": (_edit(OURS, "format", value="zip"), "found format 'zip'"),
    "a newer version": (
        _edit(OURS, "version", value=2),
        "found format 'fxpress checkpoint', version 2",
    ),
    "a file elsewhere": (
        _edit(OURS, "files", 0, 0, value="../../etc/passwd.safetensors"),
        "not a file next to the index",
    ),
    "a device": (_edit(OURS, "files", 0, 0, value="/dev/zero"), "not a file next to the index"),
    "a file's size": (_edit(OURS, "files", 0, 1, value=17), "the index expects 17"),
    "no such dtype": (_edit(OURS, "tensors", "a", 0, value="F99"), "damaged"),
    "another dtype": (_edit(OURS, "tensors", "a", 0, value="I32"), "differs from the index"),
    "more elements": (_edit(OURS, "tensors", "a", 1, value=[80, 30]), "elements, expected 2400"),
    "a slice outside": (_edit(OURS, "tensors", "a", 2, 0, 1, value=[1, 0]), "out of range"),
    "negative sizes": (_edit(OURS, "tensors", "a", 2, 0, 2, value=[-40, -30]), "non-negative"),
    "no slices": (_edit(OURS, "tensors", "a", 2, value=[]), "0 elements, expected 1200"),
    "a file that there is not": (_edit(OURS, "tensors", "a", 2, 0, 0, value=9), "is not listed"),
    "overlapping slices": (
        _edit(
            *(OURS, "tensors", "a", 2),
            value=[[0, [0, 0], [20, 30], 0], [0, [10, 0], [20, 30], 0]],
        ),
        "overlap",
    ),
    "slices of other dimensions": (
        _edit(OURS, "tensors", "a", 2, value=[[0, [0], [1200], 0]]),
        "out of range",
    ),
    "a section that is a list": (_edit(OURS, value=[]), "damaged"),
    "sizes of more than 64 bits": (_edit(OURS, "tensors", "a", 1, value=[10**30, 0]), "64 bits"),
    "more than 64 sizes": (_edit(OURS, "tensors", "a", 1, value=[1] * 65), "non-negative sizes"),
    "more elements than 64 bits count": (
        _edit(
            *(OURS, "tensors", "a"),
            value=["F32", [1 << 40, 1 << 40], [[0, [0, 0], [1 << 40, 1 << 40], 0]]],
        ),
        "elements, expected",
    ),
    "keys with one hash": (
        _edit(OURS, "values", value={"v": {"dict": [[i * (2**61 - 1), 0] for i in range(20_000)]}}),
        "'v'",
    ),
    "a value of an unknown kind": (_edit(OURS, "values", value={"v": {"set": [1]}}), "'v'"),
}


@pytest.mark.parametrize("name", EDITS)
def test_indexes(name: str, tmp_path: Path) -> None:
    said = saved(tmp_path / "saved")
    edit, text = EDITS[name]
    edit(said)
    (tmp_path / "saved" / INDEX).write_text(json.dumps(said))
    assert text in refused(tmp_path / "saved", some_state())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged"),
        ("[]", "expected a weight_map"),
        ('{"weight_map": 3}', "expected a weight_map"),
        ('{"weight_map": {"a": "../a.safetensors"}}', "not a file next to the index"),
        ('{"weight_map": {"a": "a.safetensors"}}', "No such file"),
        ("[" * 100_000, "limit 'depth'"),
        ('{"weight_map": {"a": "a\\u0000.safetensors"}}', "not a file next to the index"),
        (
            '{"weight_map": {"a": "\\u001b[31m.safetensors"}}',
            "'\\x1b[31m.safetensors' is not a file",
        ),
    ],
)
def test_texts_of_an_index(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_text(text)
    assert said in refused(tmp_path, some_state())


def test_a_pickle_cannot_change_functions(tmp_path: Path) -> None:
    """A pickle may set attributes of the objects that it names, if a state is a tuple of two."""
    defaults = pickle.dumps((None, {"__defaults__": (1,)}), 2)[2:-1]
    layout = "\n".join(torch_files.LAYOUT).encode()
    (tmp_path / ".metadata").write_bytes(b"\x80\2c" + layout + b"\n" + defaults + b"b.")
    with pytest.raises(fxpress.ArchiveError):
        torch_files.contents_of(tmp_path, None)
    assert torch_files._text.__defaults__ is None


def test_slices_that_end_where_none_begins(tmp_path: Path) -> None:
    """Ends are found among the begins by bisection, not by a look at each of them."""
    said = saved(tmp_path / "saved")
    count = 20_000
    slices = [[0, [4 * i], [3], 0] for i in range(count)]
    said[OURS]["tensors"]["a"] = ["F32", [4 * count], [*slices, [0, [0], [count], 0]]]
    (tmp_path / "saved" / INDEX).write_text(json.dumps(said))
    start = time.process_time()
    with pytest.raises(archive.ArchiveError, match="overlap"):
        ArchiveReader(tmp_path / "saved").read_metadata()
    assert time.process_time() - start < 4


def test_files_of_a_folder_share_a_budget(tmp_path: Path) -> None:
    """The memory for any one of the files is too little for four of them."""
    save_stages(tied_program(), tmp_path / "stages", 4)
    files = sorted(tmp_path.glob("stages/*.pt2"))

    def reads(path: Path, memory: int) -> bool:
        options = ReaderOptions(limits=archive.Limits(memory=memory, memory_per_byte=0))
        try:
            read_weights(main_file(path), options).close()
        except fxpress.LimitError:
            return False
        return True

    needed = next(n for n in range(1000, 10**6, 1000) if all(reads(file, n) for file in files))
    manifest = tmp_path / "stages" / "manifest.json"
    of_text = 20 * manifest.stat().st_size
    assert reads(tmp_path / "stages", of_text + 4 * needed)
    assert not reads(tmp_path / "stages", needed)


def test_a_value_with_a_wrong_checksum(tmp_path: Path) -> None:
    """With `check=True` before anything has changed; otherwise when the entire tensor was read."""
    saved(tmp_path / "saved")
    states.write(some_state(), tmp_path / "state.pt2")
    (large,) = [p for p in tmp_path.glob("saved/*.safetensors") if p.stat().st_size > 4000]
    for path, file in ((tmp_path / "saved", large), (tmp_path / "state.pt2",) * 2):
        data = bytearray(file.read_bytes())
        data[2000] ^= 1  # inside of `a`
        file.write_bytes(data)
        assert "checksum is wrong" in refused(path, some_state(), check=True)
        with pytest.raises(CheckpointException, match="checksum is wrong"):
            load(blank(some_state()), path)


def test_bytes_that_changed_anywhere(tmp_path: Path) -> None:
    """A load gives the right values or an error."""
    state = some_state()
    states.write(state, tmp_path / "state.pt2")
    data = (tmp_path / "state.pt2").read_bytes()
    chosen = random.Random(1)
    seen = 0
    for _ in range(150):
        changed = bytearray(data)
        changed[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        (tmp_path / "b.pt2").write_bytes(changed)
        target = blank(state)
        try:
            load(target, tmp_path / "b.pt2", check=True)
        except CheckpointException:
            seen += 1
        else:
            assert_same(target, state)
    assert seen > 100


@pytest.mark.parametrize("kind", ["state.pt2", "saved", "stages"])
def test_files_that_end_too_early(kind: str, tmp_path: Path) -> None:
    state = some_state()
    states.write(state, tmp_path / "state.pt2")
    saved(tmp_path / "saved")
    save_stages(tied_program(), tmp_path / "stages", 2)
    file = tmp_path / kind
    if kind == "saved":
        file = max(file.glob("*.safetensors"), key=lambda path: path.stat().st_size)
    elif kind == "stages":
        file /= "stage_1.pt2"
    data = file.read_bytes()
    wanted = state if kind != "stages" else dict(tied_program().state_dict)
    for size in (0, 3, 8, len(data) // 2, len(data) - 1):
        file.write_bytes(data[:size])
        refused(tmp_path / kind, wanted)


def test_a_manifest_that_names_other_files(tmp_path: Path) -> None:
    save_stages(tied_program(), tmp_path / "stages", 2)
    path = tmp_path / "stages" / "manifest.json"
    said = json.loads(path.read_text())
    del said["digest"]
    for name in ("/etc/passwd", "../stages/stage_0.pt2", "stage_0.pt2\0", "stage_0.txt"):
        said["stages"][0]["file"] = name
        path.write_text(json.dumps(said))
        assert "expected the name of a .pt2 file" in refused(tmp_path / "stages", some_state())
    path.write_text('{"format": "fxpress stages", "version": 99, "stages": []}')
    assert "has version 99" in refused(tmp_path / "stages", some_state())


def test_a_file_that_changes_between_plan_and_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "saved")
    plan = ArchiveReader.prepare_global_plan

    def replaced(self: ArchiveReader, plans: Any) -> Any:
        self._contents.files.close()  # as when a rank reads more files than may be open
        for path in tmp_path.glob("saved/*.safetensors"):
            data = path.read_bytes()
            path.unlink()
            path.write_bytes(data)
        return plan(self, plans)

    monkeypatch.setattr(ArchiveReader, "prepare_global_plan", replaced)
    assert "has changed while it was read" in refused(tmp_path / "saved", some_state())


class Runs:
    """A pickle of it runs a command."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


def test_pickles_of_torch_do_not_run(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "torch", no_dist=True)
    (tmp_path / "torch" / ".metadata").write_bytes(pickle.dumps(Runs(tmp_path / "ran")))
    with pytest.raises(fxpress.ArchiveError, match="mkdir, which does not belong to a checkpoint"):
        convert_weights(tmp_path / "torch", tmp_path / "b")
    dcp.save({"v": Runs(tmp_path / "ran")}, checkpoint_id=tmp_path / "other", no_dist=True)
    with pytest.raises(fxpress.SerializeError, match="allow_pickle"):
        convert_weights(tmp_path / "other", tmp_path / "b")
    assert sorted(os.listdir(tmp_path)) == ["other", "torch"]


def test_a_pickle_cannot_change_torch(tmp_path: Path) -> None:
    """A pickle sets an attribute of a class that it names; the class exists only for this file."""
    change = (
        b"\x80\x02ctorch.distributed.checkpoint.metadata\nMetadata\n"
        b"N}X\x05\x00\x00\x00stateK\x01s\x86b."
    )
    (tmp_path / ".metadata").write_bytes(change)
    before = dict(vars(dcp.Metadata))
    with pytest.raises(fxpress.ArchiveError, match="damaged"):
        convert_weights(tmp_path, tmp_path.with_name("b"))
    assert dict(vars(dcp.Metadata)) == before


def test_metadata_of_torch_that_is_damaged(tmp_path: Path) -> None:
    state = some_state()
    dcp.save(state, checkpoint_id=tmp_path / "torch", no_dist=True)
    path = tmp_path / "torch" / ".metadata"
    data = path.read_bytes()
    chosen = random.Random(2)
    for number in range(100):
        changed = bytearray(data)
        changed[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        path.write_bytes(changed)
        with contextlib.suppress(fxpress.Error, OSError, MemoryError):
            convert_weights(tmp_path / "torch", tmp_path / f"{number}")


def torchs(folder: Path, data: bytes, *, name: Any = "a", file: Any = "f", **changed: Any) -> Path:
    """A checkpoint of torch with four floats, which a file has as `data`."""
    sizes = torch.Size([4])
    chunks = [ChunkStorageMetadata(torch.Size([0]), sizes)]
    made = TensorStorageMetadata(TensorProperties(torch.float32), sizes, chunks)
    places = {MetadataIndex(name, torch.Size([0])): _StorageInfo(file, 0, len(data))}
    metadata = Metadata(**{"state_dict_metadata": {"a": made}, "storage_data": places, **changed})
    folder.mkdir()
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    (folder / "f").write_bytes(data)
    return folder


def by_torch(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def refuse_within_limits(folder: Path) -> str:
    """Convert a folder that is refused, within the memory that the limits allow for its size."""
    size = sum(path.stat().st_size for path in folder.iterdir())
    with peak_of_memory() as peak, pytest.raises(fxpress.Error) as raised:
        convert_weights(folder, folder.with_name("made"))
    assert peak.bytes < 10 * size + (256 << 20)
    assert len(str(raised.value)) < 1000
    return str(raised.value)


def test_a_checkpoint_of_torch_as_it_should_be(tmp_path: Path) -> None:
    convert_weights(torchs(tmp_path / "torch", by_torch(torch.ones(4))), tmp_path / "made")
    state = {"a": torch.ones(4)}
    assert_same(load(blank(state), tmp_path / "made"), state)


def test_members_of_enums_as_the_first_releases_of_python_311_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reduced(member: Any, _: int) -> Any:
        return getattr, (type(member), member.name)

    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", reduced)
    state = {"a": torch.ones(4)}
    dcp.save(state, checkpoint_id=tmp_path / "torch", no_dist=True)
    assert b"getattr" in (tmp_path / "torch" / ".metadata").read_bytes()
    convert_weights(tmp_path / "torch", tmp_path / "made")
    assert_same(load(blank(state), tmp_path / "made"), state)


@pytest.mark.parametrize("owner", [dict, TensorProperties(torch.float32), "a text"])
def test_pickles_of_torch_do_not_read_attributes(owner: Any, tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(3)}, checkpoint_id=tmp_path / "torch", no_dist=True)
    called = Called(getattr, owner, "__class__")
    (tmp_path / "torch" / ".metadata").write_bytes(pickle.dumps(called))
    with pytest.raises(fxpress.ArchiveError, match=r"getattr, but not for an enum|builtins\.dict"):
        convert_weights(tmp_path / "torch", tmp_path / "made")


VIEW, STORAGE = torch._utils._rebuild_tensor_v2, torch.ones(2).storage()
NO_FLOATS: dict[str, Any] = {
    "too small a storage": Called(VIEW, STORAGE, 0, (4,), (1,), False, OrderedDict()),
    "by its state": Called(
        *(VIEW, STORAGE, 0, (2,), (1,), False, OrderedDict()), state=(STORAGE, 0, (4,), (1,))
    ),
    "in a parameter": Called(
        torch._utils._rebuild_parameter,
        Called(VIEW, STORAGE, 0, (4,), (1,), False, {}),
        False,
        OrderedDict(),
    ),
    "no values": torch.ones(4, device="meta"),
    "no tensor": [1.0] * 4,
}


@pytest.mark.parametrize("name", [*NO_FLOATS, "fake"])
def test_tensors_of_torch_without_values(name: str, tmp_path: Path) -> None:
    """Tensors without values are refused, and not filled with uninitialized memory."""
    if name == "fake":
        with torch._subclasses.FakeTensorMode():
            data = save_artifact(torch.ones(4))
    else:
        data = by_torch(NO_FLOATS[name])
    refuse_within_limits(torchs(tmp_path / "torch", data))


def tree(level: int) -> Any:
    """Lists with 2 ** level paths through them."""
    made: list[Any] = []
    for _ in range(level):
        made = [made, made]
    return made


LONG = "n" * 500_000
# Each path is the one before it twice, with a slash.
_PATHS = (
    b"\x80\2cpathlib\nPosixPath\nq\0X\x10\0\0\0" + b"n" * 16 + b"q\1" + b"h\0h\1h\1\x86Rq\1" * 26
)
METADATA = {
    "a path made of paths": _PATHS + b".",
    "a place far away in the memo": b"\x80\x02Nr\xff\xff\xff\x0f.",
    "such a place as a text": b"\x80\x02Np268435455\n.",
    "a large number of bytes": b"\x80\x04\x8e\0\0\0\0\1\0\0\0.",
    "a key that is long to hash": b"\x80\x02})" + b"q\0h\0\x86" * 40 + b"Ns.",
    "deep": b"\x80\x02" + b"]" * 100_000 + b"a" * 99_999 + b".",
    "many objects": b"\x80\x02(" + b"]" * 3_000_000 + b"t.",
}
NAMES = [str(number) for number in range(1500)]
CHANGED: dict[str, Any] = {
    "a name": {"name": Called(torch.Size, tree(40))},
    "a file": {"file": tree(40)},
    "a path": {"file": Called(PurePosixPath, tree(40))},
    "a long path": {"file": Called(PurePosixPath, *[LONG] * 1000)},
    "a layout": {"planner_data": Called(torch.serialization._get_layout, tree(40))},
    "a size": {"planner_data": Called(torch.Size, tree(40))},
    "missing": {"name": LONG},
    "a tensor": {"state_dict_metadata": {"a": tree(40)}},
    "many slices": {
        "state_dict_metadata": dict.fromkeys(
            NAMES,
            TensorStorageMetadata(
                *(TensorProperties(torch.float32), torch.Size([0])),
                [ChunkStorageMetadata(torch.Size([0]), torch.Size([0]))] * len(NAMES),
            ),
        ),
        "storage_data": {
            MetadataIndex(name, torch.Size([0])): _StorageInfo("f", 0, 8) for name in NAMES
        },
    },
}


@pytest.mark.parametrize("name", [*METADATA, *CHANGED])
def test_metadata_of_torch_that_is_large(name: str, tmp_path: Path) -> None:
    folder = torchs(tmp_path / "torch", by_torch(torch.ones(4)), **CHANGED.get(name, {}))
    if name in METADATA:
        (folder / ".metadata").write_bytes(METADATA[name])
    refuse_within_limits(folder)


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
@pytest.mark.parametrize("record", ["byteorder", "data.pkl"])
def test_records_of_torch_that_expand(record: str, kind: int, tmp_path: Path) -> None:
    records = read_records(by_torch(torch.ones(4)))
    size = 1 << 29 if kind == zipfile.ZIP_DEFLATED else 1 << 20  # of others, the first is too much
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", compresslevel=1) as file:
        for name, content in records.items():
            if name.endswith(f"/{record}"):
                file.writestr(name, bytes(size), kind)
            else:
                file.writestr(name, content)
    refuse_within_limits(torchs(tmp_path / "torch", packed.getvalue()))


def test_values_of_torch_in_the_same_bytes(tmp_path: Path) -> None:
    data = by_torch(LONG * 8)
    values = {str(number): BytesStorageMetadata() for number in range(400)}
    places = {MetadataIndex(name): _StorageInfo("f", 0, len(data)) for name in values}
    folder = torchs(tmp_path / "torch", data, state_dict_metadata=values, storage_data=places)
    assert "'memory'" in refuse_within_limits(folder)


def test_a_pickle_of_a_tensor_with_a_large_memo(tmp_path: Path) -> None:
    """Python's unpickler reads this small pickle to find the tensor."""
    records = read_records(by_torch(torch.ones(4)))
    place = b"r\xff\xff\xff\x0f"
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, content in records.items():
            is_pickle = name.endswith("/data.pkl")
            file.writestr(name, content[:-1] + place + b"." if is_pickle else content)
    refuse_within_limits(torchs(tmp_path / "torch", packed.getvalue()))


def test_repeated_elements_are_charged(tmp_path: Path) -> None:
    """Repeated elements count towards the limits of memory."""
    states.write({"a": torch.ones(1).expand(1 << 30)}, tmp_path / "a.pt2")
    with pytest.raises(fxpress.LimitError, match="that share memory"):
        ArchiveReader(tmp_path / "a.pt2").read_metadata()
    limits = archive.Limits(memory=1 << 34)
    ArchiveReader(tmp_path / "a.pt2", limits=limits).read_metadata()
