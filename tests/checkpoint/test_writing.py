"""The files that `ArchiveWriter` writes into a folder, and the values that it refuses."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch.distributed.checkpoint.api import CheckpointException

import fxpress
from fxpress._distributed.checkpoint import placing
from fxpress.checkpoint import ArchiveWriter
from tests.support.checkpoints import assert_same, blank, load, save, state_of_all_kinds

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
INDEX = "model.safetensors.index.json"


def test_loaders_that_follow_the_index_find_all_tensors(tmp_path: Path) -> None:
    state = state_of_all_kinds()
    save(state, ArchiveWriter(tmp_path / "saved", file_bytes=700))
    said = json.loads((tmp_path / "saved" / INDEX).read_text())
    assert said["metadata"]["total_size"] == sum(
        value.numel() * value.itemsize for value in state.values()
    )
    found = {}
    for name, file in said["weight_map"].items():
        with safe_open(tmp_path / "saved" / file, "pt") as opened:
            found[name] = opened.get_tensor(name)
    assert_same(found, state)
    files = set(said["weight_map"].values())
    assert len(files) > 3
    assert {*files, INDEX} == set(os.listdir(tmp_path / "saved"))
    for file in files:
        names = [name for name, place in said["weight_map"].items() if place == file]
        size = sum(state[name].numel() * state[name].itemsize for name in names)
        assert size <= 700 or len(names) == 1


def nothing(value: Any) -> Any:
    """Return the same structure with None in place of values."""
    if isinstance(value, dict):
        return {key: nothing(each) for key, each in value.items()}
    return [nothing(each) for each in value] if isinstance(value, list) else None


def test_values(tmp_path: Path) -> None:
    values: dict[str, Any] = {
        "n": 2**70,
        "text": "ä\ud83d",
        "none": None,
        "list": [1, [2.5, (True, "a", [2, {"b": (3, None)}])]],
        "dict": {"a": 1, "inf": float("inf")},
        "pair": ({1: "one", (2, 3): "two and three"}, -0.0),
    }
    save({"state": values}, ArchiveWriter(tmp_path / "saved"))
    found = load({"state": nothing(values)}, tmp_path / "saved")
    assert found == {"state": values}
    assert type(found["state"]["list"][1][1]) is tuple


def test_a_save_that_fails_leaves_the_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "saved"
    first, second = {"a": torch.ones(5), "b": torch.ones(3)}, {"a": torch.zeros(5)}
    save(first, ArchiveWriter(folder))
    names = sorted(os.listdir(folder))
    for name in ("sync_folder", "write_all"):
        calls = 0

        def failing(*args: Any, name: str = name) -> None:
            nonlocal calls
            calls += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(placing, name, failing)
        writer = ArchiveWriter(folder)
        with pytest.raises(CheckpointException, match="No space left"):
            save(second, writer)
        monkeypatch.undo()
        assert calls == 1
        writer.reset()
        assert sorted(os.listdir(folder)) == names
        assert_same(load(blank(first), folder, check=True), first)
    save(second, ArchiveWriter(folder))
    assert_same(load(blank(second), folder, check=True), second)


def test_files_that_a_killed_coordinator_has_renamed_are_removed_by_the_next_save(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "saved"
    save({"a": torch.ones(5)}, ArchiveWriter(folder))
    (file,) = folder.glob("*.safetensors")
    shutil.copy(file, tmp_path / "kept")
    save({"a": torch.zeros(5)}, ArchiveWriter(folder))
    shutil.copy(tmp_path / "kept", folder / file.name)
    (folder / "model-00001-of-00001-0123456789abcdef.safetensors").touch()
    (folder / "notes.txt").touch()
    save({"a": torch.ones(5)}, ArchiveWriter(folder))
    left = os.listdir(folder)
    assert file.name not in left
    assert "notes.txt" in left
    assert "model-00001-of-00001-0123456789abcdef.safetensors" in left  # not of a save: no number


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json", ".metadata"])
def test_folders_of_others_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    with pytest.raises(CheckpointException, match="not part of this checkpoint"):
        save({"a": torch.ones(2)}, ArchiveWriter(tmp_path))
    assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            {"a": torch.ones(2, dtype=torch.complex128)},
            "'a' cannot be in a safetensors file",
        ),
        ({"__metadata__": torch.ones(2)}, "cannot be the name"),
        ({"a\ud800": torch.ones(2)}, "cannot be the name"),
        ({"a": torch.ones(2), "v": {1, 2}}, "'v' is a"),
        ({"a": torch.ones(2), "v": object()}, "'v' is an object"),
    ],
)
def test_what_cannot_be_written(state: Any, text: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointException, match=text) as raised:
        save(state, ArchiveWriter(tmp_path / "saved"))
    ((cause, _),) = raised.value.failures.values()
    assert isinstance(cause, fxpress.UnsupportedError)
    assert not (tmp_path / "saved").exists() or os.listdir(tmp_path / "saved") == []


def test_saves_without_a_coordinator_and_kept_plans_are_refused(tmp_path: Path) -> None:
    writer = ArchiveWriter(tmp_path)
    with pytest.raises(fxpress.UnsupportedError, match="expected a coordinator"):
        writer.set_up_storage_writer(True, rank=0, use_collectives=False)
    planner = dcp.DefaultSavePlanner(enable_plan_caching=True)
    dcp.save({"a": torch.ones(2)}, storage_writer=writer, planner=planner, no_dist=True)
    with pytest.raises(CheckpointException, match="enable_plan_caching"):
        dcp.save({"a": torch.ones(2)}, storage_writer=writer, planner=planner, no_dist=True)


def test_arguments(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="the path of a checkpoint, got a int"):
        ArchiveWriter(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected file_bytes to be an int"):
        ArchiveWriter(tmp_path, file_bytes=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="positive"):
        ArchiveWriter(tmp_path, file_bytes=0)
    writer = ArchiveWriter(tmp_path)
    writer.reset(tmp_path / "other")
    assert writer.checkpoint_id == tmp_path / "other"
    assert writer.storage_meta().checkpoint_id == tmp_path / "other"
    assert ArchiveWriter.validate_checkpoint_id(tmp_path)
    assert not ArchiveWriter.validate_checkpoint_id("s3://bucket/a")
