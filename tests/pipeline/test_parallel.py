"""DTensor and FSDP2 inside of stages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel
from torch.export import Dim, export

from fxpress import pipeline
from tests.support.pipelines import batches, loss_of, tied, trained_whole
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
    with pytest.raises(ValueError, match="expected both `mesh` and `plan`"):
        pipeline.load_stage(tmp_path / "stages", 0, plan=PLAN)


class Repeated(nn.Module):
    """A layer that is called four times, twice within a module that is called again."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.inner(x).relu())
        return self.head(self.inner[0](self.inner[0](x).relu()))


def repeated() -> tuple[Repeated, Tensor]:
    torch.manual_seed(0)
    return Repeated(), torch.rand(6, 8)


def repeated_in_parallel(path: Path, count: int) -> Any:
    mesh = init_device_mesh("cpu", (2,))
    plan = {"inner.0": ColwiseParallel(output_layouts=Replicate())}
    stages = [pipeline.load_stage(path, each, mesh=mesh, plan=plan) for each in range(count)]
    _, x = repeated()
    value: Any = (x,)
    for stage in stages:
        made = stage.module(*value)
        value = made if isinstance(made, tuple) else (made,)
    value[0].sum().backward()
    found: dict[str, Tensor] = {}
    for stage in stages:
        own = dict(stage.module.named_parameters())
        assert len({id(each) for each in stage.module.parameters()}) == len(own)
        for name, parameter in own.items():
            assert isinstance(parameter, DTensor) == name.startswith("inner.0")
            if parameter.grad is not None:
                gradient = parameter.grad
                full = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
                found[name] = found.get(name, torch.zeros(())) + full
    return value[0].detach(), found


@pytest.mark.parametrize("count", [1, 2, 5])
def test_calls_of_a_module_are_cut_as_the_module(count: int, tmp_path: Path) -> None:
    """A stage that begins with a later call has the names too, and one weight for all calls."""
    model, x = repeated()
    pipeline.save_stages(export(model, (x,)), tmp_path / "stages", count, by="flops")
    wanted = model(x)
    wanted.sum().backward()
    for result, gradients in run_ranks(2, repeated_in_parallel, tmp_path / "stages", count):
        torch.testing.assert_close(result, wanted.detach(), rtol=1e-5, atol=1e-6)
        assert gradients.keys() == dict(model.named_parameters()).keys()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-5, atol=1e-6)


def tied_in_parallel(path: Path, cut: str) -> Any:
    mesh = init_device_mesh("cpu", (2,))
    plan: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    if cut == "one":
        del plan["head"]
    stage = pipeline.load_stage(path, 0, mesh=mesh, plan=plan)
    weight = stage.module.get_parameter("embedding.weight")
    assert weight is stage.module.get_parameter("head.weight")
    assert weight.placements == (Shard(0),)
    tokens, target = batches(1)[0]
    result = stage.module(tokens)
    loss_of(result, target).backward()
    return result.detach(), weight.grad.full_tensor()


def test_a_tied_weight_stays_one(tmp_path: Path) -> None:
    pipeline.save_stages(tied(2), tmp_path / "stages", 1)
    module = tied(2).module()
    tokens, target = batches(1)[0]
    wanted = module(tokens)
    loss_of(wanted, target).backward()
    gradient = module.get_parameter("embedding.weight").grad
    for result, found in run_ranks(2, tied_in_parallel, tmp_path / "stages", "both"):
        torch.testing.assert_close(result, wanted.detach(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-6)


def test_a_tied_weight_that_is_cut_in_two_ways(tmp_path: Path) -> None:
    pipeline.save_stages(tied(2), tmp_path / "stages", 1)
    texts = run_ranks(2, tied_in_parallel, tmp_path / "stages", "one", fails=True)
    assert set(texts) == {
        "PipelineError: embedding.weight and head.weight are one weight, but the plan shards them "
        "differently: (Shard(dim=0),) and not at all"
    }


def with_unknown_names(path: Path) -> list[str]:
    """Build a schedule, on two ranks of a pipeline that each have a separate mesh."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("stages", "shards"))["shards"]
    found = []
    for key in ("layers.*.up", "layers.0.up", "layers.*.upp"):
        stages = pipeline.load_stages(path, mesh=mesh, plan={key: ColwiseParallel()})
        try:
            pipeline.build_schedule("1F1B", stages, 4, timeout=30)
            found.append("built")
        except pipeline.PipelineError as error:
            found.append(str(error))
    return found


def test_a_name_that_no_stage_has(tmp_path: Path) -> None:
    """torch only warns of it. A name that one of the stages has is fine."""
    pipeline.save_stages(tied(2), tmp_path / "stages", 2)
    first, second = run_ranks(2, with_unknown_names, tmp_path / "stages")
    text = "the plan names 'layers.*.upp', which is not a module that a stage runs"
    assert first == second == ["built", "built", text]


def alone_with_an_unknown_name(path: Path) -> None:
    mesh = init_device_mesh("cpu", (1,))
    pipeline.load_stage(path, 0, mesh=mesh, plan={"upp": ColwiseParallel()})


def test_a_name_that_the_only_stage_does_not_have(tmp_path: Path) -> None:
    pipeline.save_stages(tied(1), tmp_path / "stages", 1)
    (text,) = run_ranks(1, alone_with_an_unknown_name, tmp_path / "stages", fails=True)
    assert text == "PipelineError: the plan names 'upp', which is not a module that a stage runs"


def in_stages_and_in_parallel(path: Path, keys: list[str]) -> Any:
    """Train on two ranks of a pipeline, each cut over two; return losses, state and the error."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "shards"))
    group = mesh["stages"].get_group()
    plan = {
        **PLAN,
        "embedding": RowwiseParallel(input_layouts=Replicate()),
        "head": ColwiseParallel(output_layouts=Replicate()),
    }
    plan = {key: plan[key] for key in keys}
    stages = pipeline.load_stages(path, group=group, mesh=mesh["shards"], plan=plan)
    (stage,) = stages
    try:
        built = pipeline.build_schedule("1F1B", stages, 4, loss_fn=loss_of, group=group, timeout=60)
    except pipeline.PipelineError as error:
        return str(error)
    # Operations on lists of tensors do not take some that are cut and some that are not.
    optimizer = torch.optim.SGD(stage.module.parameters(), lr=0.01, momentum=0.9, foreach=False)
    losses = []
    for tokens, target in batches(3):
        optimizer.zero_grad()
        parts: list[Tensor] = []
        given = {"target": target, "losses": parts} if stage.number else {}
        built.step(*(() if stage.number else (tokens,)), **given)
        optimizer.step()
        losses.append(sum(part.item() for part in parts) / 4)
    state = stage.module.state_dict()
    return losses, {
        name: value.full_tensor() if isinstance(value, DTensor) else value
        for name, value in state.items()
    }


def test_stages_that_share_a_weight_that_is_cut(tmp_path: Path) -> None:
    """The name of a weight in a stage that has no module of this name is not cut by itself."""
    pipeline.save_stages(tied(), tmp_path / "stages", 2, by="module")
    wanted, state = trained_whole(tied(), 3)
    keys = [*PLAN, "embedding", "head"]
    found = run_ranks(4, in_stages_and_in_parallel, tmp_path / "stages", keys)
    assert {name for _, own in found for name in own} == state.keys()
    for losses, own in found:
        if any(losses):
            torch.testing.assert_close(losses, wanted, rtol=1e-5, atol=1e-5)
        for name, value in own.items():
            torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-5, msg=name)


def test_stages_that_cut_a_weight_differently(tmp_path: Path) -> None:
    pipeline.save_stages(tied(), tmp_path / "stages", 2, by="module")
    found = run_ranks(4, in_stages_and_in_parallel, tmp_path / "stages", ["head"])
    (text,) = set(found)
    assert re.fullmatch(
        r"the plan cuts (head|embedding)\.weight differently: rank 1 \(stage 1\) "
        r"\(Shard\(dim=0\),\), and rank 0 \(stage 0\) not at all",
        text,
    )


class Mlp(nn.Module):
    """Columns, and rows that take what they give; in two stages, a module is in each."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x).relu()) + x


def in_two_stages(path: Path, plan: dict[str, ParallelStyle]) -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("stages", "shards"))
    group = mesh["stages"].get_group()
    x = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(0))
    try:
        stages = pipeline.load_stages(path, group=group, mesh=mesh["shards"], plan=plan)
        built = pipeline.build_schedule("GPipe", stages, 2, group=group, timeout=30)
    except pipeline.PipelineError as error:
        return str(error)
    result = built.eval(*(() if stages[0].number else (x,)))
    if stages[0].number:
        torch.testing.assert_close(result, mlp(is_dynamic=True).module()(x))
    return "ran"


def mlp(*, is_dynamic: bool) -> Any:
    torch.manual_seed(0)
    shapes = {"x": {0: Dim("batch", min=1)}} if is_dynamic else None
    return export(Mlp(), (torch.randn(4 if is_dynamic else 2, 8, 16),), dynamic_shapes=shapes)


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_plan_that_cuts_what_passes_to_another_stage(is_dynamic: bool, tmp_path: Path) -> None:
    manifest = pipeline.save_stages(mlp(is_dynamic=is_dynamic), tmp_path / "stages", 2)
    (value,) = (each["name"] for each in manifest["stages"][0]["outputs"] if "relu" in each["name"])
    (text,) = set(
        run_ranks(
            4,
            in_two_stages,
            tmp_path / "stages",
            {"up": ColwiseParallel(), "down": RowwiseParallel()},
        )
    )
    assert re.fullmatch(
        rf"rank 0 \(stage 0\): the plan cuts {value!r}, which stage 0 passes on: a rank has the "
        r"shape \[\d+, 8, 16\], expected \[.+, 8, 32\]\. Pass output_layouts=Replicate\(\) .*",
        text,
    )


def test_a_plan_that_gives_all_to_another_stage(tmp_path: Path) -> None:
    pipeline.save_stages(mlp(is_dynamic=False), tmp_path / "stages", 2)
    plan = {
        "up": ColwiseParallel(output_layouts=Replicate()),
        "down": RowwiseParallel(input_layouts=Replicate()),
    }
    assert run_ranks(4, in_two_stages, tmp_path / "stages", plan) == ["ran"] * 4
