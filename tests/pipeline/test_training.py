"""Stages on several ranks compute what the whole program does, forward and in training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpress import pipeline
from tests.support.pipeline_models import CASES
from tests.support.pipeline_runs import SCHEDULES, run_cases, save_cases, stages_of, whole
from tests.support.pipelines import batches, infer, tied
from tests.support.ranks import run_ranks

# After up to 20 steps. The sum of gradients has another order where a weight is in two stages, or
# where a schedule runs microbatches backward in another order. A bfloat16 has 8 bits.
CLOSE = {"rtol": 1e-5, "atol": 2e-6}
CLOSE_IN_BFLOAT16 = {"rtol": 2e-2, "atol": 2e-2}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Sums have the order of the ranks, which have a thread each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def check(found: list[dict[str, Any]], wanted: dict[str, Any], close: dict[str, float]) -> None:
    """Compare what all ranks have found of a case with what the whole program did."""
    (forward,) = (each["forward"] for each in found if each["forward"] is not None)
    for one, other in zip(forward, wanted["forward"], strict=True):
        assert torch.equal(one, other)
    (losses,) = (each["losses"] for each in found if each["losses"] is not None)
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted["losses"]), **close)
    assert {name for each in found for name in each["state"]} == set(wanted["state"])
    for each in found:
        for name, value in each["state"].items():
            torch.testing.assert_close(value, wanted["state"][name], msg=name, **close)


def compare(
    name: str, size: int, schedules: tuple[str, ...], steps: int, folder: Path, every: int = 1
) -> list[list[dict[str, Any]]]:
    """Run a case by several schedules on some ranks; return what the ranks have found of each."""
    (program,) = save_cases(folder, [name], (size,)).values()
    wanted = whole(name, program, steps, every)
    cases = [(name, schedule, stages_of(schedule, size)) for schedule in schedules]
    given = run_ranks(size, run_cases, folder, cases, steps, every, timeout=500)
    by_case = [list(each) for each in zip(*given, strict=True)]
    for found in by_case:
        check(found, wanted, CLOSE_IN_BFLOAT16 if name == "half" else CLOSE)
    return by_case


@pytest.mark.parametrize(("name", "schedule"), [("tied", "1F1B"), ("several", "ZBVZeroBubble")])
def test_training(name: str, schedule: str, tmp_path: Path) -> None:
    (found,) = compare(name, 2, (schedule,), 4, tmp_path)
    assert any(each["shared"] for each in found) == (name == "tied")


@pytest.mark.slow("seven schedules, each with 6 or 20 steps")
@pytest.mark.parametrize(
    ("name", "size", "steps"),
    [*((name, 4, 6) for name in CASES), ("tied", 2, 20), ("several", 2, 20)],
)
def test_all_schedules(name: str, size: int, steps: int, tmp_path: Path) -> None:
    compare(name, size, SCHEDULES, steps, tmp_path)


@pytest.mark.slow("three schedules, each with 8 steps")
@pytest.mark.parametrize("name", ["tied", "mixture"])
def test_gradients_of_two_steps_are_added(name: str, tmp_path: Path) -> None:
    compare(name, 2, ("GPipe", "1F1B", "ZBVZeroBubble"), 8, tmp_path, every=2)


@pytest.mark.slow("20 steps on two ranks")
@pytest.mark.parametrize("name", ["tied", "normed"])
def test_the_state_goes_back_into_the_model(name: str, tmp_path: Path) -> None:
    (found,) = compare(name, 2, ("Interleaved1F1B",), 20, tmp_path)
    model = CASES[name].model()
    state = {key: value for each in found for key, value in each["state"].items()}
    model.load_state_dict(state, strict=True)
    for key, value in model.state_dict().items():
        assert torch.equal(value, state[key])


@pytest.mark.parametrize("schedule", ["GPipe", "Interleaved1F1B"])
def test_inference(schedule: str, tmp_path: Path) -> None:
    """Of an archive, by a schedule without a loss."""
    program = tied()
    pipeline.save_stages(program, tmp_path / "stages.pt2", stages_of(schedule, 2))
    (tokens, _) = batches(1)[0]
    with torch.no_grad():
        wanted = torch.cat([program.module()(part) for part in tokens.chunk(4)])
    found = run_ranks(2, infer, tmp_path / "stages.pt2", schedule, (tokens,))
    (result,) = (each for each in found if each is not None)
    assert torch.equal(result, wanted)
