"""Conversions between formats: equal bits, complete targets, one tensor in memory at a time."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.export import ExportedProgram

import fxpress
from fxpress import archive
from fxpress import state as states
from fxpress._distributed.checkpoint.weights import Weights
from fxpress._distributed.stages.save import save_stages
from fxpress.checkpoint import ArchiveReader, ArchiveWriter, convert_weights
from fxpress.pipeline import load_stage
from tests.archive.test_rights import files_of_at_most
from tests.support.checkpoints import (
    assert_same,
    blank,
    distributed,
    load,
    save,
    state_of_all_kinds,
    tied_program,
)
from tests.support.process import peak_of_memory
from tests.support.ranks import run_ranks
from tests.support.staged import Chain, assert_same_values

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
slow = pytest.mark.slow("starts processes")


def saved(program: ExportedProgram, folder: Path, **options: Any) -> Path:
    """Save a program under the name that the others of a test have."""
    folder.mkdir()
    fxpress.save(program, folder / "model.pt2", **options)
    return folder / "model.pt2"


def with_graph(folder: Path, **options: Any) -> tuple[ExportedProgram, Path]:
    """A program, and a file with its graph and other weights."""
    program = tied_program(1)
    kept = {name: value.clone() for name, value in program.state_dict.items()}
    with torch.no_grad():
        for value in program.state_dict.values():
            value.zero_()
    path = saved(program, folder, **options)
    with torch.no_grad():
        for name, value in program.state_dict.items():
            value.copy_(kept[name])
    return program, path


def check_program(path: Path, program: ExportedProgram, folder: Path) -> None:
    """Check that a file has the bytes that `save` writes for a program."""
    assert path.read_bytes() == saved(program, folder).read_bytes()


def test_four_stages_become_two_become_three_become_one(tmp_path: Path) -> None:
    program, graph = with_graph(tmp_path / "graph")
    save_stages(program, tmp_path / "4", 4)
    other = fxpress.load(graph)
    convert_weights(tmp_path / "4", tmp_path / "2", program=graph, stages=2)
    convert_weights(tmp_path / "2", tmp_path / "3", program=other, stages=3, by="bytes")
    tokens = torch.randint(0, 32, (4,))
    for count in (2, 3):
        chain = Chain(tmp_path / str(count))
        assert len(chain.modules) == count
        assert_same_values(chain(tokens), program.module()(tokens))
        stages = [load_stage(tmp_path / str(count), number) for number in range(count)]
        given: Any = (tokens,)
        for stage in stages:
            given = stage.module(*given)
        assert_same_values([given], program.module()(tokens))
    (tmp_path / "one").mkdir()
    convert_weights(
        tmp_path / "3", tmp_path / "one" / "model.pt2", program=graph, missing="program"
    )
    check_program(tmp_path / "one" / "model.pt2", program, tmp_path / "wanted")


def test_the_folder_of_stages_to_fill(tmp_path: Path) -> None:
    program, graph = with_graph(tmp_path / "graph")
    save_stages(fxpress.load(graph), tmp_path / "stages", 3)
    convert_weights(saved(program, tmp_path / "a"), tmp_path / "3", program=tmp_path / "stages")
    save_stages(fxpress.load(saved(program, tmp_path / "b")), tmp_path / "wanted", 3)
    names = sorted(os.listdir(tmp_path / "wanted"))
    assert sorted(os.listdir(tmp_path / "3")) == names
    for name in names:
        if name != "manifest.json":
            assert (tmp_path / "3" / name).read_bytes() == (tmp_path / "wanted" / name).read_bytes()
    found, wanted = (
        json.loads((tmp_path / folder / "manifest.json").read_text()) for folder in ("3", "wanted")
    )
    assert found["stages"] == wanted["stages"]


@pytest.mark.parametrize("weights", ["inline", "safetensors", "none"])
def test_programs_with_and_without_weights_are_filled(weights: Any, tmp_path: Path) -> None:
    program, graph = with_graph(tmp_path / "graph", weights=weights)
    states.write(program.state_dict, tmp_path / "state.pt2")
    (tmp_path / "one").mkdir()
    convert_weights(tmp_path / "state.pt2", tmp_path / "one" / "model.pt2", program=graph)
    check_program(tmp_path / "one" / "model.pt2", program, tmp_path / "wanted")


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_there_and_back(form: Any, tmp_path: Path) -> None:
    (program, graph), state = with_graph(tmp_path / "graph"), state_of_all_kinds()
    convert_weights(saved(program, tmp_path / "a"), tmp_path / "b", form=form)
    convert_weights(tmp_path / "b", tmp_path / "2", program=graph, stages=2)
    (tmp_path / "one").mkdir()
    convert_weights(
        tmp_path / "2", tmp_path / "one" / "model.pt2", program=program, missing="program"
    )
    check_program(tmp_path / "one" / "model.pt2", program, tmp_path / "wanted")
    states.write(state, tmp_path / "state.pt2")
    convert_weights(tmp_path / "state.pt2", tmp_path / "c", form=form, file_bytes=1000)
    convert_weights(tmp_path / "c", tmp_path / "d")
    assert_same(load(blank(state), tmp_path / "d", check=True), state)


def test_torch_reads_what_was_converted(tmp_path: Path) -> None:
    state = {name: value.clone().contiguous() for name, value in state_of_all_kinds().items()}
    save({**state, "n": 3, "options": {"lr": 0.5}}, ArchiveWriter(tmp_path / "a"))
    convert_weights(tmp_path / "a", tmp_path / "b", form="torch")
    found: dict[str, Any] = {**blank(state), "n": 0, "options": {"lr": 0.0}}
    dcp.load(found, checkpoint_id=tmp_path / "b", no_dist=True)
    assert (found.pop("n"), found.pop("options")) == (3, {"lr": 0.5})
    assert_same(found, state)


def torch_saves(path: Path) -> None:
    values = {"lr": 0.5, "betas": (0.9, 0.99), "names": ["a", None]}
    state = {name: value.clone().contiguous() for name, value in state_of_all_kinds().items()}
    dcp.save({"model": distributed(state, "grid"), "options": values}, checkpoint_id=path)


@slow
def test_a_checkpoint_that_torch_wrote_on_four_ranks(tmp_path: Path) -> None:
    run_ranks(4, torch_saves, tmp_path / "torch")
    convert_weights(tmp_path / "torch", tmp_path / "a")
    state = {f"model.{name}": value for name, value in state_of_all_kinds().items()}
    assert_same(load(blank(state), tmp_path / "a", check=True), state)
    values = {"options": {"lr": 0.0, "betas": None, "names": [None, ""]}}
    load(values, tmp_path / "a")
    assert values == {"options": {"lr": 0.5, "betas": (0.9, 0.99), "names": ["a", None]}}


def test_targets_are_made_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tied_program(1)
    graph = saved(program, tmp_path / "graph")
    before = graph.read_bytes()
    read, calls = Weights.read, 0

    def failing(self: Weights, name: str, target: Tensor | None = None) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 7:
            raise OSError("the disk is gone")
        return read(self, name, target)

    monkeypatch.setattr(Weights, "read", failing)
    for target, options in (
        (tmp_path / "a", {}),
        (tmp_path / "b", {"form": "torch"}),
        (tmp_path / "c", {"program": graph, "stages": 2}),
        (graph, {"program": graph}),
    ):
        calls = 0
        with pytest.raises(OSError, match="the disk is gone"):
            convert_weights(graph, target, **options)  # type: ignore[arg-type]
    monkeypatch.undo()
    assert graph.read_bytes() == before
    assert os.listdir(tmp_path) == ["graph"]
    assert os.listdir(tmp_path / "graph") == ["model.pt2"]


@pytest.mark.parametrize("form", ["safetensors", "torch"])
def test_a_full_disk_is_an_oserror(form: Any, tmp_path: Path) -> None:
    """torch's writer of zip files raises RuntimeError when it is closed after a failed write."""
    states.write({"a": torch.ones(300_000)}, tmp_path / "a.pt2")
    with files_of_at_most(100_000), pytest.raises(OSError, match="File too large"):
        convert_weights(tmp_path / "a.pt2", tmp_path / "target", form=form)
    assert os.listdir(tmp_path) == ["a.pt2"]


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    program = tied_program(1)
    graph = saved(program, tmp_path / "graph")
    state = dict(program.state_dict)
    for change, text in (
        ({"layers.0.bias": None}, "'layers.0.bias' does not have a value"),
        ({"layers.0.bias": torch.ones(3)}, r"'layers.0.bias' is torch.float32\[3\] instead of"),
        ({"scale": torch.ones(16)}, r"'scale' is torch.float32\[16\] instead of torch.bfloat16"),
    ):
        changed = {n: v for n, v in {**state, **change}.items() if v is not None}
        states.write(changed, tmp_path / "state.pt2")
        for options in ({}, {"stages": 2}):
            with pytest.raises(fxpress.SerializeError, match=text):
                convert_weights(
                    tmp_path / "state.pt2", tmp_path / "o.pt2", program=graph, **options
                )
    assert sorted(os.listdir(tmp_path)) == ["graph", "state.pt2"]


def test_arguments(tmp_path: Path) -> None:
    graph = saved(tied_program(), tmp_path / "graph")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes.txt").touch()
    for error, text, target, options in (
        (TypeError, "the path of a checkpoint, got a int", 3, {}),
        (ValueError, "expected `missing` to be", "a.pt2", {"missing": "zeros"}),
        (TypeError, "got a int", "a.pt2", {"program": 3}),
        (ValueError, "expected `form` to be one of", "a", {"form": "zip"}),
        (ValueError, "needs a program", "a.pt2", {}),
        (ValueError, "needs a program", "a", {"stages": 3}),
        (ValueError, "does not use", "a", {"form": "torch", "program": graph}),
        (ValueError, "needs one program", "a", {"form": "pt2", "program": graph, "stages": 2}),
        (ValueError, "or a folder", "a", {"form": "stages", "program": graph}),
        (FileExistsError, "folder", folder, {"form": "torch"}),
        (FileExistsError, "folder", folder, {"program": graph, "stages": 2}),
        (FileExistsError, "notes", folder / "notes.txt", {"form": "safetensors"}),
    ):
        with pytest.raises(error, match=text):
            convert_weights(graph, tmp_path / target if target != 3 else 3, **options)  # type: ignore[arg-type]


def test_a_checkpoint_is_replaced(tmp_path: Path) -> None:
    for seed in (1, 2):
        path = saved(tied_program(seed), tmp_path / str(seed))
        convert_weights(path, tmp_path / "saved")
    assert_same(
        load(blank(tied_program(2).state_dict), tmp_path / "saved"), tied_program(2).state_dict
    )
    assert len(os.listdir(tmp_path / "saved")) == 2


def test_progress(tmp_path: Path) -> None:
    program = tied_program()
    said: list[tuple[int, int, str]] = []
    convert_weights(
        saved(program, tmp_path / "a"), tmp_path / "b", progress=lambda *args: said.append(args)
    )
    total = sum(value.nbytes for value in program.state_dict.values())
    assert said[-1] == (total, total, "converting: bytes")


def converts(source: Path, target: Path, options: dict[str, Any]) -> int:
    convert_weights(source, target.with_name(f"first-{target.name}"), **options)  # imports
    with peak_of_memory() as peak:
        convert_weights(source, target, **options)
    return peak.bytes


LARGEST = 48 << 20  # bytes


class Wide(torch.nn.Module):
    """Ten layers whose weights have LARGEST bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(3072, 4096, bias=False) for _ in range(6))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in self.layers]


@pytest.mark.slow("writes files of 300 MB")
def test_memory_is_that_of_a_tensor(tmp_path: Path) -> None:
    program = torch.export.export(Wide(), (torch.ones(1, 3072),))
    source = saved(program, tmp_path / "a")
    convert_weights(source, tmp_path / "torch", form="torch")
    cases: list[tuple[Path, str, dict[str, Any]]] = [
        (source, "safetensors", {}),
        (source, "b", {"form": "torch"}),
        (source, "one.pt2", {"program": source, "form": "pt2"}),
        (source, "two", {"program": source, "stages": 2}),
        (tmp_path / "safetensors", "again.pt2", {"program": source, "form": "pt2"}),
        (tmp_path / "torch", "from-torch", {}),
    ]
    for path, target, options in cases:
        (peak,) = run_ranks(1, converts, path, tmp_path / target, options)
        print(target, peak >> 20)
        assert peak <= 1.05 * LARGEST + (40 << 20), (target, peak >> 20)
        archive.verify(source)
        shutil.rmtree(tmp_path / f"first-{target}", ignore_errors=True)


def test_what_the_reader_says_of_torchs_checkpoints(tmp_path: Path) -> None:
    dcp.save({"a": torch.ones(2)}, checkpoint_id=tmp_path, no_dist=True)
    with pytest.raises(fxpress.ArchiveError, match="FileSystemReader, or convert it"):
        ArchiveReader(tmp_path).read_metadata()


@pytest.mark.parametrize("position", [0, 1])
def test_urls_are_refused_without_their_secrets(position: int, tmp_path: Path) -> None:
    paths: list[Any] = [tmp_path / "a", tmp_path / "b"]
    paths[position] = "s3://user:secret@bucket/a?sig=secret"
    with pytest.raises(fxpress.UnsupportedError) as caught:
        convert_weights(*paths)
    assert "secret" not in str(caught.value)
    assert not list(tmp_path.iterdir())
