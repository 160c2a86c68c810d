"""torch's own API takes the pipe of a program."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.pipelining import ScheduleGPipe, SplitPoint, pipeline
from torch.export import Dim, export

import fxpress.pipeline
from fxpress.pipeline import StageError, plan, to_pipe
from tests.support.pipelines import VOCABULARY, Tied, tied
from tests.support.ranks import run_ranks


class Skipping(nn.Module):
    """The last layer has two inputs: the output of the first layer and an input of the program."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Tensor]:
        first = x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(x).relu()
        return {"sum": x * scale + first, "first": first}


def skipping() -> tuple[Any, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    inputs = torch.randn(4, 8), torch.randn(4, 8)
    return export(Skipping(), inputs), inputs


def test_the_whole_runs() -> None:
    program, inputs = skipping()
    pipe = to_pipe(program, 3)
    assert pipe.num_stages == 3
    wanted, found = program.module()(*inputs), pipe(*inputs)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_as_torch_makes_it() -> None:
    """Cut in the same place, the stages have the same state under the same names."""
    torch.manual_seed(0)
    model, tokens = Tied(2), torch.randint(0, VOCABULARY, (4, 8))
    theirs = pipeline(model, (tokens,), split_spec={"layers.1": SplitPoint.BEGINNING})
    program = export(model, (tokens,))
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    first = next(
        i
        for i, node in enumerate(nodes)
        if any(path == "layers.1" for path, _ in node.meta["nn_module_stack"].values())
    )
    cut = plan(program, 2)
    ours = to_pipe(program, type(cut)(**{**vars(cut), "ends": (first, len(nodes))}))
    for number in range(2):
        one, other = (each.get_stage_module(number).state_dict() for each in (ours, theirs))
        assert {n for n in one if "embedding" not in n and "head" not in n} == {
            n for n in other if "embedding" not in n and "head" not in n
        }
    assert ours.replicated_params == [{"submod_pp_0": "head.weight", "submod_pp_1": "head.weight"}]
    assert torch.equal(ours(tokens), theirs(tokens)[0])


def test_what_is_shared_is_that_of_the_cut() -> None:
    """A caller may have moved an end of a plan, so that other stages have copies of a weight."""
    program = export(Tied(2), (torch.randint(0, VOCABULARY, (4, 8)),))
    made = plan(program, 3)
    assert [each.stages for each in made.shared] == [(0, 2)]
    moved = dataclasses.replace(made, ends=(1, 2, made.operations), shared=())
    found = to_pipe(program, moved).replicated_params
    assert found == [{"submod_pp_0": "head.weight", "submod_pp_2": "head.weight"}]
    layers = export(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), (torch.ones(4, 8),))
    stale = dataclasses.replace(plan(layers, 2), shared=plan(program, 2).shared)
    assert to_pipe(layers, stale).replicated_params == []


def run_pipe(stages: int) -> Any:
    program, (x, scale) = skipping()
    pipe = to_pipe(program, stages)
    rank = distributed.get_rank()
    stage = pipe.build_stage(rank, torch.device("cpu"))
    built = ScheduleGPipe(stage, 1)
    with torch.no_grad():
        return built.step(*([x, scale] if rank == 0 else []))


def test_torch_runs_the_stages(tmp_path: Path) -> None:
    program, inputs = skipping()
    found = run_ranks(2, run_pipe, 2)
    wanted = program.module()(*inputs)
    assert all(
        torch.equal(one, other) for one, other in zip(found[1], wanted.values(), strict=True)
    )


def test_numbers_cannot_pass() -> None:
    with pytest.raises(StageError, match="passes from stage 0 to 1, and is not a tensor"):
        to_pipe(tied(), 2)


class Scaled(nn.Module):
    """Two layers, and an input that is not a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor, scale: int | None = None) -> Tensor:
        return self.second(self.first(x) * (1 if scale is None else scale))


@pytest.mark.parametrize("dynamic", [False, True])
def test_inputs_that_are_no_tensors(dynamic: bool) -> None:
    shapes = {"x": None, "scale": Dim.DYNAMIC if dynamic else None}
    program = export(Scaled(), (torch.ones(4, 8), 3), dynamic_shapes=shapes)
    with pytest.raises(StageError, match="the input scale is not a tensor") as caught:
        to_pipe(program, 2)
    assert len(str(caught.value).splitlines()) == 1


def test_an_input_that_is_left_out() -> None:
    program = export(Scaled(), (torch.ones(4, 8), None))
    with pytest.raises(StageError, match="the input scale is not a tensor"):
        to_pipe(program, 2)
    pipe = to_pipe(program, 1)  # whose only stage does not take it
    x = torch.randn(4, 8)
    assert torch.equal(pipe(x, None), program.module()(x, None))


class Rows(nn.Module):
    """A value of plain sizes with the strides of a wider tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sin()[:, 0])


def test_sizes_that_are_symbols_cannot_pass() -> None:
    layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    rows = export(layers, (torch.ones(4, 8),), dynamic_shapes=({0: Dim("rows", min=2)},))
    strides = export(Rows(), (torch.ones(4, 5),), dynamic_shapes=({1: Dim("width", min=2)},))
    for program in (rows, strides):
        with pytest.raises(StageError, match="passes from stage 0 to 1, and its size is") as caught:
            to_pipe(program, 2)
        assert str(caught.value).endswith("with the size of a microbatch")
        assert len(str(caught.value).splitlines()) == 1
    x = torch.randn(6, 8)
    assert torch.equal(to_pipe(rows, 1)(x), layers(x))  # nothing passes


def test_a_plan_for_another_program() -> None:
    with pytest.raises(StageError, match="the plan is for another program"):
        to_pipe(skipping()[0], fxpress.pipeline.plan(tied(), 2))
