"""Arguments that nothing can be done with are refused at once, in one line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel

from fxpress import pipeline
from fxpress.pipeline import PipelineError
from tests.support.pipelines import tied
from tests.support.ranks import run_ranks


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stages") / "of_two"
    pipeline.save_stages(tied(1), path, 2)
    return path


@pytest.mark.parametrize("number", ["0", None, 0.0, True, -1, 2])
def test_the_number_of_a_stage(number: Any, stages: Path) -> None:
    with pytest.raises(PipelineError) as caught:
        pipeline.load_stage(stages, number)
    assert str(caught.value) == f"stage {number!r} does not exist: {stages} has stages 0 to 1"


@pytest.mark.parametrize(
    ("device", "text"),
    [
        (
            "foo",
            "ValueError: expected a device such as 'cpu' or 'cuda:1', got 'foo'",
        ),
        (3.5, "TypeError: expected device to be a torch.device or its name, got a float"),
    ],
)
def test_a_device(device: Any, text: str, stages: Path) -> None:
    assert _refused(pipeline.load_stage, stages, 0, device=device) == text


@pytest.mark.parametrize("function", [pipeline.plan, pipeline.to_pipe, pipeline.save_stages])
def test_what_is_no_plan(function: Any, stages: Path, tmp_path: Path) -> None:
    """An example is the result of `save_stages`, whose text is long."""
    path = [tmp_path / "new"] if function is pipeline.save_stages else []
    manifest = json.loads((stages / "manifest.json").read_text())
    text = "StageError: expected `stages` to be a Plan (from plan) or an int, got a dict"
    assert _refused(function, tied(1), *path, manifest) == text


@pytest.mark.parametrize(
    "schedule", [None, Schedule1F1B, "", "1F2B", "PipelineScheduleMulti", "pipelineschedulesingle"]
)
def test_what_is_no_schedule(schedule: Any) -> None:
    with pytest.raises(ValueError, match="schedule") as caught:
        pipeline.placement(schedule, 2, 2)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("schedule", "ranks", "stages"),
    [
        ("Interleaved1F1B", 0, 2),
        ("Interleaved1F1B", 2, 0),
        ("Interleaved1F1B", -2, 4),
        ("Interleaved1F1B", 2, -4),
        ("GPipe", 0, 0),
        ("GPipe", 2.0, 2),
        ("GPipe", True, 1),
        ("ZBVZeroBubble", 0, 0),
        ("1F1B", "2", None),
    ],
)
def test_numbers_of_ranks_and_stages(schedule: str, ranks: Any, stages: Any) -> None:
    with pytest.raises(PipelineError) as caught:
        pipeline.placement(schedule, ranks, stages)
    assert str(caught.value) == f"{schedule} cannot run {stages!r} stages on {ranks!r} ranks"


def _refused(function: Any, *args: Any, **kwargs: Any) -> str:
    try:
        function(*args, **kwargs)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


def given_meshes(path: Path) -> list[str]:
    plan = {"layers.*.up": ColwiseParallel()}
    two = init_device_mesh("cpu", (1, 1), mesh_dim_names=("rows", "columns"))
    refused = [
        _refused(pipeline.load_stage, path, 0, mesh=mesh, plan=plan) for mesh in (two, 2, "cpu")
    ]
    row = two["rows"]
    pipeline.load_stage(path, 0, mesh=row, plan=plan)
    for wrong in ("up", {"up": ColwiseParallel}, {1: ColwiseParallel()}):
        refused.append(_refused(pipeline.load_stage, path, 0, mesh=row, plan=wrong))
    return refused


def test_a_mesh(stages: Path) -> None:
    (found,) = run_ranks(1, given_meshes, stages)
    text = "ValueError: expected `plan` to be a dict from names to styles, got a str"
    assert found[3] == text
    assert all("expected plan to map str to ParallelStyle" in each for each in found[4:])
    assert found[:3] == [
        "ValueError: the mesh has 2 dimensions: slice one of them, mesh[name]",
        "ValueError: expected mesh to be a DeviceMesh, got a int",
        "ValueError: expected mesh to be a DeviceMesh, got a str",
    ]


def given_others(path: Path) -> list[str]:
    """Give arguments on one rank only: nothing is agreed, so that nobody waits."""
    group = distributed.new_group([0])
    rank = distributed.get_rank()
    if rank == 0:
        return []
    loaded = [pipeline.load_stage(path, rank)]
    build = pipeline.build_schedule
    found = [
        _refused(pipeline.load_stages, path, group=group),
        _refused(build, "1F1B", loaded, 4, group=group),
        _refused(build, "1F1B", loaded, 4, loss_fn="mse_loss"),
        _refused(build, "PipelineScheduleSingle", loaded, 4),
    ]
    for timeout in (0, -1.0, math.nan, math.inf, None, "8", True):
        found.append(_refused(build, "1F1B", loaded, 4, timeout=timeout))
        found.append(_refused(pipeline.load_stages, path, timeout=timeout))
    return found


def test_arguments_of_one_rank(stages: Path) -> None:
    _, found = run_ranks(2, given_others, stages, timeout=60)
    assert found[:4] == [
        "ValueError: rank 1 is not in the group",
        "ValueError: rank 1 is not in the group",
        "TypeError: expected loss_fn to be a function, got a str",
        "ValueError: PipelineScheduleSingle is a base class of schedules, not a schedule",
    ]
    values = ["0", "-1.0", "nan", "inf", "None", "'8'", "True"]
    text = "ValueError: expected timeout to be a positive number of seconds, got"
    assert found[4:] == [f"{text} {value}" for value in values for _ in range(2)]
