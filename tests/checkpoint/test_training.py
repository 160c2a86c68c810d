"""Interrupted training continues from a checkpoint, with the same or another number of ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fxpress.checkpoint import ArchiveReader, ArchiveWriter
from tests.support.checkpoints import Tied, assert_same, whole
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.slow("starts processes")


class Training:
    """A module of FSDP2 and its optimizer."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        self.model = Tied(16)
        self.model.head.weight = torch.nn.Parameter(self.model.head.weight.detach().clone())
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in self.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01, betas=(0.8, 0.9))

    def steps(self, numbers: range) -> None:
        """Train; each rank has the same data, so that their number does not matter much."""
        for number in numbers:
            torch.manual_seed(number)
            self.model(torch.randint(0, 32, (8,))).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer}


def trains(folder: Path) -> Any:
    """Train six steps, with a checkpoint after three."""
    training = Training(1)
    training.steps(range(3))
    dcp.save(training.state(), storage_writer=ArchiveWriter(folder))
    training.steps(range(3, 6))
    return whole(training.model.state_dict())


def goes_on(folder: Path, steps: range) -> Any:
    training = Training(2)
    state = training.state()
    dcp.load(state, storage_reader=ArchiveReader(folder))
    set_state_dict(
        training.model,
        training.optimizer,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
    )
    training.steps(steps)
    return whole(training.model.state_dict())


def test_as_many_ranks(tmp_path: Path) -> None:
    (wanted, _), (found, other) = (
        run_ranks(2, trains, tmp_path / "saved"),
        run_ranks(2, goes_on, tmp_path / "saved", range(3, 6)),
    )
    assert_same(found, wanted)
    assert_same(other, wanted)


def test_other_ranks_get_the_same_values(tmp_path: Path) -> None:
    run_ranks(2, trains, tmp_path / "saved")
    (wanted, _) = run_ranks(2, goes_on, tmp_path / "saved", range(0))
    for world in (1, 4):
        assert_same(run_ranks(world, goes_on, tmp_path / "saved", range(0))[0], wanted)


def saves_meanwhile(folder: Path) -> Any:
    """Save while training continues."""
    training = Training(1)
    training.steps(range(2))
    before = whole(training.model.state_dict())
    before = {name: value.clone() for name, value in before.items()}
    group = dist.new_group()  # training runs other collectives meanwhile
    writer = ArchiveWriter(folder)
    saved = dcp.async_save(training.state(), storage_writer=writer, process_group=group)
    training.steps(range(2, 4))
    saved.result()
    return before


def test_a_save_in_the_background(tmp_path: Path) -> None:
    (wanted, _) = run_ranks(2, saves_meanwhile, tmp_path / "saved")
    (found, _) = run_ranks(2, goes_on, tmp_path / "saved", range(0))
    assert_same(found, wanted)
