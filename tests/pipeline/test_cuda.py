"""Stages on a GPU, which talk through NCCL where there is more than one rank."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.export import export

from fxpress import pipeline

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

PARTS = 4


@pytest.fixture
def _group() -> Iterator[None]:
    distributed.init_process_group(
        "nccl",
        store=distributed.HashStore(),
        rank=0,
        world_size=1,
        device_id=torch.device("cuda:0"),
    )
    yield
    distributed.destroy_process_group()


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4)))


@pytest.mark.usefixtures("_group")
@pytest.mark.parametrize(
    ("schedule", "stages"), [("1F1B", 1), ("Interleaved1F1B", 2), ("ZBVZeroBubble", 2)]
)
def test_training_on_one_gpu(schedule: str, stages: int, tmp_path: Path) -> None:
    """Stages that were saved on the CPU train on the GPU like the entire module."""
    x, target = torch.rand(2 * PARTS, 16), torch.rand(2 * PARTS, 16)
    pipeline.save_stages(export(model(), (x[:2],)), tmp_path / "stages", stages)
    loaded = pipeline.load_stages(tmp_path / "stages", schedule, device="cuda")
    weights = [p for stage in loaded for p in stage.module.parameters()]
    assert {p.device.type for p in weights} == {"cuda"}
    built = pipeline.build_schedule(
        schedule, loaded, n_microbatches=PARTS, loss_fn=nn.functional.mse_loss
    )
    whole = copy.deepcopy(model()).cuda()
    sides = [torch.optim.SGD(p, lr=0.1) for p in (weights, list(whole.parameters()))]
    for _ in range(3):
        losses: list[torch.Tensor] = []
        built.step(x.cuda(), target=target.cuda(), losses=losses)
        wanted = nn.functional.mse_loss(whole(x.cuda()), target.cuda())
        wanted.backward()
        torch.testing.assert_close(torch.stack(losses).mean(), wanted)
        for side in sides:
            side.step()
            side.zero_grad()
    with torch.no_grad():
        torch.testing.assert_close(built.eval(x.cuda()), whole(x.cuda()))
