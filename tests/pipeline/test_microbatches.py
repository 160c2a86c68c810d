"""Each rank checks the arguments of a step before it sends anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fxpress import pipeline
from fxpress._distributed.errors import PipelineError
from fxpress._distributed.pipeline.arguments import MicrobatchChecker
from tests.support.pipeline_runs import stages_of
from tests.support.pipelines import VOCABULARY, loss_of, tied
from tests.support.ranks import run_ranks


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stages") / "2"
    pipeline.save_stages(tied(), path, 2)
    return path


def tokens_of(rows: int, columns: int = 8) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return torch.randint(0, VOCABULARY, (rows, columns), generator=generator)


def run(path: Path, steps: list[tuple[str, int, int]], loss: bool, schedule: str) -> list[Any]:
    """Run steps, each "step" or "eval" with rows of inputs and of targets; 0: no target."""
    stages = pipeline.load_stages(path, schedule)
    loss_fn = loss_of if loss else None
    built = pipeline.build_schedule(schedule, stages, 4, loss_fn=loss_fn, timeout=6)
    has_first = any(stage.number == 0 for stage in stages)
    has_last = any(stage.number + 1 == stage.count for stage in stages)
    found: list[Any] = []
    for what, rows, target in steps:
        args = (tokens_of(rows),) if has_first else ()
        last = {"target": tokens_of(target)} if target and has_last else {}
        with torch.set_grad_enabled(what == "step" and loss):
            try:
                made = getattr(built, what)(*args, **last)
            except PipelineError as error:
                return [*found, str(error)]
        found.append(None if made is None else made.detach())
    return found


def run_both(path: Path, *steps: tuple[str, int, int], loss: bool = True) -> tuple[list[Any], str]:
    """Return what the last stage gave, and the text of the error, the same on both ranks."""
    first, second = run_ranks(2, run, path, list(steps), loss, "1F1B")
    assert len(first) == len(second) == len(steps)
    error = second.pop() if isinstance(second[-1], str) else ""
    assert (first[-1] or "") == error
    return second, error


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (10, "a batch of 10 (args[0]) cannot be divided into 4 microbatches"),
        (2, "expected inputs of 4 microbatches, got 2"),
    ],
)
def test_a_batch_that_is_not_divided(rows: int, text: str, stages: Path) -> None:
    found, error = run_both(stages, ("step", rows, 0), loss=False)
    assert found == []
    assert error == f"rank 0 (stage 0): {text}"


@pytest.mark.parametrize("rows", [8, 24])
def test_a_batch_of_another_size(rows: int, stages: Path) -> None:
    found, error = run_both(stages, ("step", 16, 0), ("step", rows, 0), loss=False)
    assert [each.shape[0] for each in found] == [16]
    assert error == (
        f"rank 0 (stage 0): args[0] of a microbatch is int64[{rows // 4}, 8], and was "
        "int64[4, 8] in the previous microbatches"
    )


@pytest.mark.parametrize("rows", [10, 2])
def test_a_target_that_is_not_divided(rows: int, stages: Path) -> None:
    _, error = run_both(stages, ("step", 8, rows))
    text = f"a target with batch size {rows} cannot be divided into 4 microbatches"
    assert error == f"rank 1 (stage 1): {text}"


def test_steps_and_evaluations_have_sizes_of_their_own(stages: Path) -> None:
    sizes = [("step", 16), ("eval", 8), ("eval", 8), ("step", 8)]
    found, error = run_both(stages, *((what, rows, rows) for what, rows in sizes))
    assert not error
    module = tied().module()
    for (_, rows), given in zip(sizes, found, strict=True):
        wanted = torch.cat([module(part) for part in tokens_of(rows).chunk(4)])
        torch.testing.assert_close(given, wanted)


@pytest.mark.parametrize("schedule", ["1F1B", "ZBVZeroBubble"])
def test_an_evaluation_without_a_target(schedule: str, tmp_path: Path) -> None:
    """Before training and after it."""
    pipeline.save_stages(tied(), tmp_path / "stages", stages_of(schedule, 2))
    steps = [("eval", 8, 0), ("step", 8, 8), ("eval", 8, 0), ("eval", 8, 8)]
    found = run_ranks(2, run, tmp_path / "stages", steps, True, schedule)
    (given,) = (each for each in found if each[0] is not None)
    wanted = torch.cat([tied().module()(part) for part in tokens_of(8).chunk(4)])
    for each in given:
        torch.testing.assert_close(each, wanted)


def test_a_step_without_a_target(stages: Path) -> None:
    _, error = run_both(stages, ("step", 8, 0))
    assert error == "rank 1 (stage 1): a training step needs the target on this rank"


def run_without_inputs(path: Path) -> str:
    (stage,) = pipeline.load_stages(path)
    built = pipeline.build_schedule("1F1B", stage, 4, timeout=30)
    with pytest.raises(PipelineError) as caught:
        built.step()
    return str(caught.value)


def test_a_step_without_inputs(stages: Path) -> None:
    first, second = run_ranks(2, run_without_inputs, stages)
    assert first == second
    assert first == (
        "rank 0 (stage 0): stage 0 expects the inputs of the program, with the structure "
        "TreeSpec(tuple, None, [TreeSpec(tuple, None, [*]), TreeSpec(dict, [], [])]), got "
        "TreeSpec(tuple, None, [TreeSpec(tuple, None, []), TreeSpec(dict, [], [])])"
    )


def two(args: Any, kwargs: Any = None) -> MicrobatchChecker:
    made = MicrobatchChecker(2)
    made.check(args, kwargs)
    return made


def test_parts_that_are_cut_already() -> None:
    x, y = torch.zeros(3, 6), torch.zeros(2, 6)
    two(None)
    two([(x, 1), (x, 2)], [{"a": [y]}, {"a": [y]}]).check([(x, 1), (x, 2)], [{"a": [y]}] * 2)
    with pytest.raises(
        PipelineError, match=r"a batch of 5 \(args\[0\]\) cannot be divided into 2 microbatches"
    ):
        two([(x,), (y,)])
    text = r"kwargs\['a'\]\[0\] is float32\[3, 6\] in a microbatch, and float64\[3, 6\] in another"
    with pytest.raises(PipelineError, match=text):
        two(None, [{"a": [x]}, {"a": [x.double()]}])
    with pytest.raises(PipelineError, match=r"expected inputs of 2 microbatches, got 1"):
        two([(x,)])


def test_another_type_or_place() -> None:
    x = torch.zeros(3, 6)
    with pytest.raises(
        PipelineError, match=r"is float64\[3, 6\], and was float32\[3, 6\] in the previous"
    ):
        two([(x,)] * 2).check([(x.double(),)] * 2, None)
    text = r"the microbatches have the tensors kwargs\['x'\], and previously had args\[0\]"
    with pytest.raises(PipelineError, match=text):
        two([(x,)] * 2).check(None, [{"x": x}] * 2)


def test_targets() -> None:
    given = MicrobatchChecker(2)
    given.begin(True, torch.zeros(4))
    text = r"the target is float32\[6\], and was float32\[4\] in the previous microbatches"
    with pytest.raises(PipelineError, match=text):
        given.begin(True, torch.zeros(6))
    given.begin(False, torch.zeros(6))
    with pytest.raises(PipelineError, match="a target without dimensions cannot be divided into 2"):
        given.begin(False, torch.tensor(0.0))
