"""DTensor and FSDP2 inside of stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel

from fxpress import pipeline
from tests.support.pipelines import batches, loss_of, tied
from tests.support.ranks import run_ranks

PLAN: dict[str, ParallelStyle] = {
    "layers.*.up": ColwiseParallel(),
    "layers.*.down": RowwiseParallel(),
}
SHARDED = "layers.1.up.weight"


def gradient_of_the_whole() -> tuple[torch.Tensor, torch.Tensor]:
    module = tied(2).module()
    tokens, target = batches(1)[0]
    result = module(tokens)
    loss_of(result, target).backward()
    return result.detach(), module.get_parameter(SHARDED).grad


def in_parallel(path: Path) -> Any:
    mesh = init_device_mesh("cpu", (2,))
    stages = [pipeline.load_stage(path, number, mesh=mesh, plan=PLAN) for number in range(2)]
    weights = [each.module.state_dict().get(SHARDED) for each in stages]
    (weight,) = (each for each in weights if each is not None)
    assert isinstance(weight, DTensor)
    tokens, target = batches(1)[0]
    result = stages[1].module(*stages[0].module(tokens))
    loss_of(result, target).backward()
    (gradient,) = (
        each.module.get_parameter(SHARDED).grad
        for each, found in zip(stages, weights, strict=True)
        if found is not None
    )
    return weight.to_local().shape, result.detach(), gradient.full_tensor()


@pytest.mark.parametrize("name", ["stages", "stages.pt2"])
def test_tensor_parallel(name: str, tmp_path: Path) -> None:
    pipeline.save_stages(tied(2), tmp_path / name, 2, by="module")
    for shape, result, gradient in run_ranks(2, in_parallel, tmp_path / name):
        assert shape == (16, 16)
        wanted, of_whole = gradient_of_the_whole()
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, of_whole, rtol=1e-4, atol=1e-6)


def fully_sharded(path: Path) -> Any:
    mesh = init_device_mesh("cpu", (2,))
    stages = [pipeline.load_stage(path, number) for number in range(2)]
    for stage in stages:
        for name, module in stage.module.named_modules():
            if name.count(".") == 1 and name.startswith("layers."):
                fully_shard(module, mesh=mesh)
        fully_shard(stage.module, mesh=mesh)
    tokens, target = batches(1)[0]
    result = stages[1].module(*stages[0].module(tokens))
    loss_of(result, target).backward()
    (gradient,) = (
        dict(stage.module.named_parameters())[SHARDED].grad
        for stage in stages
        if SHARDED in dict(stage.module.named_parameters())
    )
    return gradient.to_local().shape, result.detach(), gradient.full_tensor()


def test_fsdp(tmp_path: Path) -> None:
    pipeline.save_stages(tied(2), tmp_path / "stages", 2)
    for shape, result, gradient in run_ranks(2, fully_sharded, tmp_path / "stages"):
        assert shape == (16, 16)
        wanted, of_whole = gradient_of_the_whole()
        torch.testing.assert_close(result, wanted, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(gradient, of_whole, rtol=1e-4, atol=1e-6)


def refused(path: Path) -> Any:
    mesh = init_device_mesh("cpu", (3,))
    return pipeline.load_stage(path, 0, mesh=mesh, plan=PLAN)


def test_a_mesh_that_does_not_divide(tmp_path: Path) -> None:
    pipeline.save_stages(tied(1), tmp_path / "stages", 1)
    texts = run_ranks(3, refused, tmp_path / "stages", fails=True)
    assert set(texts) == {
        "PipelineError: a mesh of 3 does not divide dimension 0 of layers.0.up.weight, which has "
        "the size 32"
    }


def test_a_plan_without_a_mesh(tmp_path: Path) -> None:
    pipeline.save_stages(tied(1), tmp_path / "stages", 1)
    with pytest.raises(ValueError, match="belong together"):
        pipeline.load_stage(tmp_path / "stages", 0, plan=PLAN)
