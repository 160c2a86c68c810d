"""Several processes read their shards and write theirs, as DTensors and with FSDP2."""

from __future__ import annotations

import copy
import json
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import fxpress
from fxpress import state as states
from fxpress.checkpoint import ArchiveReader, ArchiveWriter
from tests.support.checkpoints import (
    HEADERS,
    PLACEMENTS,
    Counting,
    Tied,
    assert_same,
    blank,
    distributed,
    load,
    local,
    local_bytes,
    state_of_all_kinds,
    tied_program,
    whole,
)
from tests.support.ranks import RankError, die, run_ranks

slow = pytest.mark.slow("starts processes")


def big_state() -> dict[str, Tensor]:
    """Tensors whose sizes no number of ranks divides, with long rows, so that gaps are skipped."""
    torch.manual_seed(5)
    return {
        "first": torch.randn(258, 2050),
        "second": torch.randn(515, 4098).to(torch.bfloat16),
        "bias": torch.randn(2050),
        "step": torch.tensor(7),
    }


def contiguous(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.clone().contiguous() for name, value in state.items()}


def reads(path: Path, name: str, state: Any) -> tuple[int, int, int]:
    """Load DTensors and compare them; return bytes of headers, of tensors, and of the shards."""
    made = distributed(blank(state()), name)
    dcp.load(dict(made), storage_reader=ArchiveReader(path))  # imports what is imported at need
    made = distributed(blank(state()), name)
    reader = Counting(path)
    dcp.load(made, storage_reader=reader)
    assert_same(local(made), local(distributed(state(), name)))
    return reader.headers, reader.tensors, local_bytes(made)


def check_reads(path: Path, name: str, world: int, state: Any = big_state) -> None:
    for headers, tensors, shards in run_ranks(world, reads, path, name, state):
        assert headers <= HEADERS
        assert tensors <= 1.05 * shards + HEADERS


def test_each_rank_reads_its_rows(tmp_path: Path) -> None:
    states.write(big_state(), tmp_path / "state.pt2")
    check_reads(tmp_path / "state.pt2", "rows", 2)


@slow
@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_placements(name: str, tmp_path: Path) -> None:
    states.write(big_state(), tmp_path / "state.pt2")
    check_reads(tmp_path / "state.pt2", name, 4)


def odd_state() -> dict[str, Tensor]:
    return contiguous(state_of_all_kinds())


@slow
@pytest.mark.parametrize("name", ["rows", "columns"])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_all_kinds_of_tensors(name: str, world: int, tmp_path: Path) -> None:
    """A file with views reads as one of contiguous tensors does."""
    states.write(state_of_all_kinds(), tmp_path / "state.pt2")
    run_ranks(world, reads, tmp_path / "state.pt2", name, odd_state)


def saves(path: Path, name: str, state: Any) -> None:
    dcp.save(distributed(state(), name), storage_writer=ArchiveWriter(path, file_bytes=1_000_000))


@slow
@pytest.mark.parametrize("name", sorted(PLACEMENTS))
def test_what_ranks_write_is_read_by_fewer_and_by_more(name: str, tmp_path: Path) -> None:
    run_ranks(4, saves, tmp_path / "saved", name, big_state)
    assert_same(load(blank(big_state()), tmp_path / "saved", check=True), big_state())
    check_reads(tmp_path / "saved", "rows", 2)
    check_reads(tmp_path / "saved", "columns", 3)
    check_reads(tmp_path / "saved", "grid", 4)


@slow
@pytest.mark.parametrize("name", ["rows", "columns", "replicated"])
def test_all_kinds_of_tensors_are_written(name: str, tmp_path: Path) -> None:
    run_ranks(4, saves, tmp_path / "saved", name, odd_state)
    assert_same(load(blank(odd_state()), tmp_path / "saved", check=True), odd_state())
    run_ranks(2, reads, tmp_path / "saved", "rows", odd_state)


@slow
def test_safetensors_finds_what_is_whole_and_no_slice_under_its_name(tmp_path: Path) -> None:
    run_ranks(2, saves, tmp_path / "saved", "rows", big_state)
    found = {}
    for path in tmp_path.glob("saved/*.safetensors"):
        with safe_open(path, "pt") as file:
            found.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    wanted = big_state()
    assert torch.equal(found["step"], wanted["step"])
    assert torch.equal(found["first@129,0"], wanted["first"][129:])
    assert "first" not in found


def shards(path: Path, saved: Path, width: int) -> tuple[int, int, list[Any]]:
    """Load a program's weights into a model of FSDP2, train a step, save and load again."""
    torch.manual_seed(9)
    model = Tied(width)
    for layer in model.layers:
        fully_shard(layer, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    state = model.state_dict()
    reader = Counting(path)
    dcp.load(state, storage_reader=reader)
    model.load_state_dict(state)
    first = copy.deepcopy(whole(model.state_dict()))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.arange(8) % 32).sum().backward()
    optimizer.step()
    trained = copy.deepcopy(whole(model.state_dict()))
    dcp.save(model.state_dict(), storage_writer=ArchiveWriter(saved))
    torch.manual_seed(10)
    again = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    dcp.load(again, storage_reader=ArchiveReader(saved))
    return reader.tensors, local_bytes(state), [first, trained, whole(again)]


@slow
@pytest.mark.parametrize("world", [1, 2, 4])
def test_fully_sharded_modules(world: int, tmp_path: Path) -> None:
    program = tied_program(width=256)
    fxpress.save(program, tmp_path / "model.pt2")
    for read, mine, (first, trained, again) in run_ranks(
        world, shards, tmp_path / "model.pt2", tmp_path / "saved", 256
    ):
        assert read <= 1.05 * mine + HEADERS
        assert_same(first, program.state_dict)
        assert not torch.equal(trained["head.weight"], first["head.weight"])
        assert_same(again, trained)


def loads_another(paths: list[Path]) -> str:
    """Load from another file on each rank; return the type and the text of the error."""
    state = {"a": torch.zeros(4)}
    try:
        dcp.load(state, storage_reader=ArchiveReader(paths[dist.get_rank()]))
    except CheckpointException as error:
        assert not state["a"].any()
        return str(error)
    return ""


@slow
def test_ranks_that_look_at_different_files(tmp_path: Path) -> None:
    paths = []
    for rank in range(2):
        (tmp_path / str(rank)).mkdir()
        paths.append(tmp_path / str(rank) / "a.pt2")
        states.write({"a": torch.full((4,), rank + 1.0)}, paths[-1])
    found = run_ranks(2, loads_another, paths)
    assert found[0] == found[1]
    assert "the ranks [1] read another checkpoint than rank 0" in found[0]


@slow
def test_a_file_that_is_damaged_for_one_rank(tmp_path: Path) -> None:
    states.write({"a": torch.ones(4)}, tmp_path / "a.pt2")
    (tmp_path / "b.pt2").write_bytes(b"PK\3\4 and nothing else")
    found = run_ranks(2, loads_another, [tmp_path / "a.pt2", tmp_path / "b.pt2"])
    assert found[0] == found[1]
    assert "b.pt2" in found[0]
    assert "RANK 1" in found[0]
    assert "RANK 0" not in found[0]


class DyingWriter(ArchiveWriter):
    """A writer whose process dies at a step, on a rank."""

    def __init__(self, path: Path, step: str, rank: int) -> None:
        super().__init__(path)
        self._step = step if dist.get_rank() == rank else ""

    def prepare_local_plan(self, plan: Any) -> Any:
        self._end("plan")
        return super().prepare_local_plan(plan)

    def write_data(self, plan: Any, planner: Any) -> Any:
        self._end("before")
        done = super().write_data(plan, planner)
        self._end("after")
        return done

    def finish(self, metadata: Any, results: Any) -> None:
        self._end("finish")
        super().finish(metadata, results)

    def _end(self, step: str) -> None:
        if step == self._step:
            die()


def dies(path: Path, step: str, rank: int) -> None:
    state = {name: value + 1 for name, value in big_state().items()}
    dcp.save(distributed(state, "rows"), storage_writer=DyingWriter(path, step, rank))


@slow
@pytest.mark.parametrize(
    ("step", "rank"), [("plan", 1), ("before", 1), ("after", 1), ("after", 0), ("finish", 0)]
)
def test_a_rank_that_dies_leaves_the_checkpoint_before(
    step: str, rank: int, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    run_ranks(2, saves, folder, "rows", big_state)
    names = set(os.listdir(folder))
    run_ranks(2, dies, folder, step, rank, fails=True, collective=20)
    assert names <= set(os.listdir(folder))
    assert_same(load(blank(big_state()), folder, check=True), big_state())
    run_ranks(2, saves, folder, "columns", odd_state)
    assert_same(load(blank(odd_state()), folder, check=True), odd_state())
    index, *others = sorted(os.listdir(folder), key=lambda name: name.endswith("s"))
    assert index == "model.safetensors.index.json"
    assert len(others) == 2  # nothing is left of the save that died, or of the first one


def numbered(number: int) -> dict[str, Tensor]:
    return {name: value + number for name, value in big_state().items()}


def dies_at(path: Path, number: int, seconds: float, rank: int) -> None:
    """Save a state, and kill a rank after some time: before, during or after the save."""
    state = distributed(numbered(number), "rows")
    dist.barrier()
    if dist.get_rank() == rank:
        threading.Timer(seconds, die).start()
    dcp.save(state, storage_writer=ArchiveWriter(path, file_bytes=1_000_000))
    time.sleep(0.2)


@pytest.mark.deep("starts processes 50 times")
def test_ranks_that_are_killed_at_any_time(tmp_path: Path) -> None:
    """The checkpoint is the one before or the new one, and nothing of others is left in the end."""
    chosen = random.Random(0)
    folder = tmp_path / "saved"
    run_ranks(2, saves, folder, "rows", big_state)
    now, changes = 0, 0
    for number in range(1, 51):
        seconds, rank = chosen.uniform(0, 0.15), chosen.randrange(2)
        run_ranks(2, dies_at, folder, number, seconds, rank, fails=True, collective=20)
        found = load(blank(big_state()), folder, check=True)
        last, now = now, number if found["step"] == 7 + number else now
        changes += last != now
        assert_same(found, numbered(now))
    assert 0 < changes < 50
    run_ranks(2, saves, folder, "rows", big_state)
    said = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {name for name, _ in said["fxpress"]["files"]}
    assert set(os.listdir(folder)) == {*files, "model.safetensors.index.json"}


class Refusing(nn.Module):
    """A state with an object that only a pickle can hold, on one rank."""

    def state_dict(self, *_: Any, **__: Any) -> dict[str, Any]:
        own = object() if dist.get_rank() == 1 else 3
        return {"a": torch.ones(3), f"value.{dist.get_rank()}": own}


def refuses(path: Path) -> str:
    try:
        dcp.save(Refusing().state_dict(), storage_writer=ArchiveWriter(path))
    except CheckpointException as error:
        return str(error)
    return ""


@slow
def test_an_object_on_one_rank_is_an_error_on_all(tmp_path: Path) -> None:
    found = run_ranks(2, refuses, tmp_path / "saved")
    assert found[0] == found[1]
    assert "'value.1'" in found[0]
    assert "pickle" in found[0]
    assert not [name for name in os.listdir(tmp_path / "saved") if not name.startswith(".")]


def hangs() -> None:
    if dist.get_rank() == 1:
        time.sleep(1000)


def raises() -> None:
    raise ValueError("of a rank")


@slow
def test_ranks_that_hang_or_raise_are_ended() -> None:
    with pytest.raises(RankError, match=r"the ranks \[1\] have not ended"):
        run_ranks(2, hangs, timeout=8)
    with pytest.raises(RankError, match="of a rank"):
        run_ranks(2, raises)
