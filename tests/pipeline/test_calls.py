"""Modules that are called several times, and the names of their state in stages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import checkpoint
from torch.export import export

from fxpress import pipeline
from fxpress.checkpoint import ArchiveReader


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)
        self.register_buffer("scale", torch.rand(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.first(self.norm(x)).relu() * self.scale


class Repeated(nn.Module):
    """A block that is called four times, within a module that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(Block(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)
        self.register_buffer("shift", torch.rand(8), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.inner(x + self.shift))
        return self.head(self.inner[0](self.inner[0](x)))


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 6, 9, 17])
def test_stages_have_the_original_names(stages: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, x = Repeated(), torch.rand(2, 8)
    program = export(model, (x,))
    pipeline.save_stages(program, tmp_path / "stages", stages, by="flops")
    loaded = [pipeline.load_stage(tmp_path / "stages", number) for number in range(stages)]
    parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
    state = model.state_dict()
    found: dict[str, Tensor] = {}
    value = (x,)
    for stage in loaded:
        ran: list[str] = []
        having = {name.rpartition(".")[0] for name, _ in stage.module.named_parameters()}
        for name in having:
            module = stage.module.get_submodule(name)
            module.register_forward_hook(lambda *_, name=name, ran=ran: ran.append(name))
        own_parameters = [name for name, _ in stage.module.named_parameters()]
        assert own_parameters == [name for name in parameters if name in own_parameters]
        assert {name for name, _ in stage.module.named_buffers()} <= buffers.keys()
        assert len({*stage.module.parameters()}) == len([*stage.module.parameters()])
        own = stage.module.state_dict()
        assert own.keys() <= state.keys()
        found |= own
        result = stage.module(*value)
        assert {*ran} == having  # hooks and plans of the model's modules have an effect
        value = result if isinstance(result, tuple) else (result,)
        with torch.no_grad():
            changed = {name: tensor + 1 for name, tensor in own.items()}
        stage.module.load_state_dict(changed)
        for name, tensor in stage.module.state_dict().items():
            assert torch.equal(tensor, changed[name])
        checkpoint.load(own, storage_reader=ArchiveReader(tmp_path / "stages"), no_dist=True)
        for name, tensor in own.items():
            assert torch.equal(tensor, state[name])
    assert torch.equal(value[0], model(x))
    assert found.keys() == state.keys()
    model.load_state_dict(found)


def test_state_without_values_has_the_same_names(tmp_path: Path) -> None:
    program = export(Repeated(), (torch.rand(2, 8),))
    pipeline.save_stages(program, tmp_path / "stages", 2)
    for number in range(2):
        full = pipeline.load_stage(tmp_path / "stages", number).module.state_dict()
        empty = pipeline.load_stage(tmp_path / "stages", number, load_weights=False)
        assert list(empty.module.state_dict()) == list(full)


def test_a_stage_without_values_does_not_run(tmp_path: Path) -> None:
    program = export(Repeated(), (torch.rand(2, 8),))
    pipeline.save_stages(program, tmp_path / "stages", 1)
    stage = pipeline.load_stage(tmp_path / "stages", 0, load_weights=False)
    with pytest.raises(pipeline.PipelineError, match=r"^\S+ is not loaded: fill the state"):
        stage.module(torch.rand(2, 8))
    full = pipeline.load_stage(tmp_path / "stages", 0)
    stage.module.load_state_dict(full.module.state_dict(), assign=True)
    for name, buffer in full.module.named_buffers():  # no checkpoint has them
        path, _, own = name.rpartition(".")
        stage.module.get_submodule(path).register_buffer(own, buffer, persistent=False)
    x = torch.rand(2, 8)
    assert torch.equal(stage.module(x), full.module(x))


class Twice(nn.Module):
    """A block that is called twice, with a norm that counts; and weights that are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(8, 8), nn.Linear(8, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner(self.inner(self.embedding(x)).relu()))


def filled_to_empty(stage: pipeline.LoadedStage, path: Path) -> None:
    stage.module.to_empty(device="cpu")
    checkpoint.load(stage.module.state_dict(), storage_reader=ArchiveReader(path), no_dist=True)


def filled_by_assignment(stage: pipeline.LoadedStage, path: Path) -> None:
    state = pipeline.load_stage(path, 0).module.state_dict()
    stage.module.load_state_dict(state, assign=True)


@pytest.mark.parametrize("fill", [filled_to_empty, filled_by_assignment])
def test_state_that_is_filled_later_stays_one(fill: Any, tmp_path: Path) -> None:
    """A stage trains as the model after each way to give it its values."""
    torch.manual_seed(0)
    model, x = Twice(), torch.randint(0, 8, (4,))
    path = tmp_path / "stages"
    pipeline.save_stages(export(model, (x,)), path, 1)
    stage = pipeline.load_stage(path, 0, load_weights=False)
    fill(stage, path)
    assert len(list(stage.module.parameters())) == len(list(model.parameters()))
    for module in (model, stage.module):
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        for _ in range(3):
            module(x).square().mean().backward()
            optimizer.step()
    for name, value in stage.module.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[name])
