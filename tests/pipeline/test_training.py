"""Stages on several ranks train as the whole program does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from fxpress import pipeline
from tests.support.pipelines import batches, infer, tied, train, trained_whole
from tests.support.stage_ranks import run_ranks

TWO = [("GPipe", 2), ("1F1B", 2), ("Interleaved1F1B", 4), ("ZBVZeroBubble", 4), ("LoopedBFS", 4)]


@pytest.mark.parametrize(("schedule", "stages"), TWO)
def test_training(schedule: str, stages: int, tmp_path: Path) -> None:
    program = tied()
    pipeline.save_stages(program, tmp_path / "stages", stages)
    wanted, state = trained_whole(program, 20)
    found = run_ranks(train, 2, tmp_path / "run", tmp_path / "stages", schedule, 20)
    assert not any(isinstance(each, str) for each in found), found
    losses = [max(each) for each in zip(*(losses for losses, _ in found), strict=True)]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-4, atol=1e-5)
    for _, own in found:
        for name, value in own.items():
            torch.testing.assert_close(value, state[name], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("schedule", "stages"), TWO[:3])
def test_inference(schedule: str, stages: int, tmp_path: Path) -> None:
    program = tied()
    pipeline.save_stages(program, tmp_path / "stages.pt2", stages)
    (tokens, _) = batches(1)[0]
    with torch.no_grad():
        wanted = torch.cat([program.module()(part) for part in tokens.chunk(4)])
    found = run_ranks(infer, 2, tmp_path / "run", tmp_path / "stages.pt2", schedule, (tokens,))
    (result,) = (each for each in found if each is not None)
    assert torch.equal(result, wanted)
