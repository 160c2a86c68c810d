"""Weights in files fill states of one process, bit for bit, by ranges."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

import fxpress
from fxpress import UnsupportedError
from fxpress import state as states
from fxpress._distributed.stages.save import save_stages
from fxpress._files.archive.weight_files import open_weights
from fxpress._files.serde.limits import Budget
from fxpress.checkpoint import ArchiveReader, convert_weights
from tests.support.checkpoints import (
    HEADERS,
    Counting,
    assert_same,
    blank,
    load,
    state_of_all_kinds,
    tied_program,
)
from tests.support.staged import names_of_state

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.mark.parametrize("check", [False, True])
def test_all_kinds_of_tensors(check: bool, tmp_path: Path) -> None:
    state = state_of_all_kinds()
    states.write(state, tmp_path / "state.pt2")
    assert_same(load(blank(state), tmp_path / "state.pt2", check=check), state)


def test_a_safetensors_file(tmp_path: Path) -> None:
    state = {name: value.contiguous() for name, value in state_of_all_kinds().items()}
    state = {name: value.clone() for name, value in state.items()}
    save_file(state, tmp_path / "model.safetensors")
    for path in (tmp_path / "model.safetensors", tmp_path):
        assert_same(load(blank(state), path), state)


@pytest.mark.parametrize("code", ["F4", "F6_E2M3", "C128", "float32", "nn", "F" * 1000])
def test_tensors_of_an_unknown_dtype(code: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    entries = {
        "known": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
        "odd": {"dtype": code, "shape": [4, 3], "data_offsets": [8, 14]},
    }
    header = json.dumps(entries).encode()
    data = torch.tensor([1.5, -2.0]).numpy().tobytes() + bytes(6)
    path.write_bytes(len(header).to_bytes(8, "little") + header + data)
    known = {"known": torch.tensor([1.5, -2.0])}
    assert_same(load(blank(known), path), known)
    with pytest.raises(CheckpointException) as raised:
        load({"odd": torch.zeros(4, 3)}, path)
    ((cause, _),) = raised.value.failures.values()
    assert isinstance(cause, UnsupportedError)
    assert f"'odd' is of the dtype '{code[:20]}'," in str(cause)
    with pytest.raises(UnsupportedError, match="'odd'"):
        convert_weights(path, tmp_path / "target")
    assert not (tmp_path / "target").exists()
    with open_weights(path, Budget(None, 0)) as get:
        assert_same({"known": get("known")}, known)
        with pytest.raises(UnsupportedError, match="'odd' is of the dtype"):
            get("odd")


def test_an_index_of_transformers(tmp_path: Path) -> None:
    state = {name: value.clone().contiguous() for name, value in state_of_all_kinds().items()}
    place_of = {name: f"model-0000{n % 3}-of-00003.safetensors" for n, name in enumerate(state)}
    for file in sorted(set(place_of.values())):
        save_file({n: v for n, v in state.items() if place_of[n] == file}, tmp_path / file)
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": place_of}))
    for path in (index, tmp_path):
        assert_same(load(blank(state), path), state)


@pytest.mark.parametrize("weights", ["inline", "safetensors"])
def test_a_program(weights: Any, tmp_path: Path) -> None:
    program = tied_program()
    fxpress.save(program, tmp_path / "model.pt2", weights=weights)
    wanted = dict(program.state_dict)
    assert_same(load(blank(wanted), tmp_path / "model.pt2"), wanted)


def test_a_folder_of_stages(tmp_path: Path) -> None:
    program = tied_program()
    save_stages(program, tmp_path / "stages", 3)
    names = {name for each in names_of_state(tmp_path / "stages") for name in each}
    wanted = {name: value for name, value in program.state_dict.items() if name in names}
    assert len(wanted) > 10
    assert_same(load(blank(wanted), tmp_path / "stages"), wanted)


def test_tensors_of_classes_of_their_own_are_refused_without_being_asked(tmp_path: Path) -> None:
    class Own(Tensor):
        pass

    Own.__module__, Own.__qualname__ = __name__, "Own"
    globals()["Own"] = Own
    try:
        states.write(
            {"a": torch.ones(2), "own": torch.ones(3).as_subclass(Own)}, tmp_path / "a.pt2"
        )
        with pytest.raises(fxpress.SerializeError, match="allow_pickle"):
            ArchiveReader(tmp_path / "a.pt2").read_metadata()
        state = {"own": torch.zeros(3)}
        load(state, tmp_path / "a.pt2", allow_pickle=True)
        assert state["own"].tolist() == [1, 1, 1]
    finally:
        del globals()["Own"]


def test_other_dtypes_are_converted_as_by_torchs_reader(tmp_path: Path) -> None:
    value = torch.randn(5, 3)
    states.write({"a": value}, tmp_path / "a.pt2")
    dcp.save({"a": value}, checkpoint_id=tmp_path / "torch", no_dist=True)
    for dtype in (torch.bfloat16, torch.float64, torch.int32):
        ours, torchs = {"a": torch.zeros(5, 3, dtype=dtype)}, {"a": torch.zeros(5, 3, dtype=dtype)}
        load(ours, tmp_path / "a.pt2")
        dcp.load(torchs, checkpoint_id=tmp_path / "torch", no_dist=True)
        assert_same(ours, torchs)


def test_only_the_tensors_of_the_state_are_read(tmp_path: Path) -> None:
    state = {f"layer.{n}": torch.randn(256, 256) for n in range(8)}
    states.write(state, tmp_path / "state.pt2")
    wanted = {"layer.5": torch.zeros(256, 256)}
    reader = Counting(tmp_path / "state.pt2")
    dcp.load(wanted, storage_reader=reader, no_dist=True)
    assert_same(wanted, {"layer.5": state["layer.5"]})
    assert reader.tensors <= 256 * 256 * 4 + 1000
    assert reader.headers <= HEADERS


def test_targets_that_are_not_contiguous(tmp_path: Path) -> None:
    value = torch.randn(6, 4)
    states.write({"a": value}, tmp_path / "a.pt2")
    memory = torch.zeros(4, 12)
    state = {"a": memory.t()[::2]}
    load(state, tmp_path / "a.pt2")
    assert torch.equal(memory.t()[::2], value)
    assert not memory.t()[1::2].any()


def test_names_and_sizes_that_are_not_there(tmp_path: Path) -> None:
    states.write({"a": torch.ones(2, 3)}, tmp_path / "a.pt2")
    for state, text in (
        ({"b": torch.zeros(2, 3)}, "Missing key in checkpoint state_dict: b"),
        ({"a": torch.zeros(3, 2)}, "Size mismatch between saved"),
    ):
        before = copy.deepcopy(state)
        with pytest.raises(CheckpointException, match=text):
            load(state, tmp_path / "a.pt2")
        assert_same(state, before)


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the path of weights, got a int"):
        ArchiveReader(3)  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError, match="checkpoint"):
        ArchiveReader(tmp_path).read_metadata()
    assert ArchiveReader.validate_checkpoint_id(tmp_path)
    assert ArchiveReader.validate_checkpoint_id("s3://bucket/model")
    assert not ArchiveReader.validate_checkpoint_id(3)  # type: ignore[arg-type]
    reader = ArchiveReader(tmp_path)
    reader.reset(tmp_path / "other")
    assert reader.checkpoint_id == tmp_path / "other"


def test_a_url_that_nothing_reads_from() -> None:
    for refused in (ArchiveReader, ArchiveReader(".").reset):
        with pytest.raises(UnsupportedError, match=r"^nothing-knows-this://bucket/a\.pt2 can"):
            refused("nothing-knows-this://bucket/a.pt2")
