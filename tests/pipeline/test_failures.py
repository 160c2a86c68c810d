"""A rank that fails, dies or hangs ends the others with an error that names it."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from fxpress import pipeline
from fxpress._pipeline.agreement import text_of
from tests.support.pipelines import batches, loss_of, tied
from tests.support.ranks import ranks, run_ranks


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("stages")
    for count in (2, 3, 4):
        pipeline.save_stages(tied(), folder / f"{count}", count)
    return {count: folder / f"{count}" for count in (2, 3, 4)}


def steps_until(path: Path, bad: int, what: str, timeout: float) -> Any:
    """Run steps; on the rank `bad`, something goes wrong in the second. Returns error and time."""
    rank = distributed.get_rank()
    (stage,) = pipeline.load_stages(path)
    built = pipeline.build_schedule("1F1B", stage, 4, loss_fn=loss_of, timeout=timeout)
    tokens, target = batches(1)[0]

    def wrong(*_: Any) -> None:
        if what == "raise":
            raise ValueError("something is wrong")
        if what == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)

    for number in range(3):
        if number == 1 and rank == bad:
            stage.module.register_forward_pre_hook(wrong)
        start = time.monotonic()
        try:
            last = {"target": target} if stage.number + 1 == stage.count else {}
            built.step(*([tokens] if rank == 0 else []), **last)
        except pipeline.PipelineError as error:
            return str(error), time.monotonic() - start
    return None


@pytest.mark.slow("nine runs of three processes")
@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("what", ["raise", "die", "hang"])
def test_a_rank(what: str, bad: int, stages: dict[int, Path], tmp_path: Path) -> None:
    timeout = 8.0
    with ranks(3, steps_until, stages[3], bad, what, timeout) as running:
        if what == "hang":
            others = [each for rank, each in enumerate(running.processes) if rank != bad]
            for each in others:
                each.join(60)
                assert not each.is_alive()
            running.processes[bad].kill()
        found = running.results(60)
    wanted = {
        "raise": f"rank {bad} (stage {bad}): ValueError: something is wrong",
        "die": f"rank {bad} (stage {bad}) has died",
        "hang": f"rank {bad} (stage {bad}) hangs in step 2, forward of microbatch 0",
    }[what]
    if what != "raise":
        assert found.pop(bad) is None
    texts = {text for text, _ in found}
    assert len(texts) == 1
    assert texts.pop().startswith(wanted)
    assert max(taken for _, taken in found) < timeout + 2


def steps_until_a_loss_hangs(path: Path, calls: int) -> str | None:
    """Run steps of 4 microbatches, until a call of the loss function after others hangs."""
    (stage,) = pipeline.load_stages(path)
    is_last = stage.number + 1 == stage.count
    left = calls

    def loss(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        nonlocal left
        if not left:
            time.sleep(1000)
        left -= 1
        return loss_of(logits, target)

    built = pipeline.build_schedule("GPipe", stage, 4, loss_fn=loss, timeout=4)
    tokens, target = batches(1)[0]
    try:
        while True:
            built.step(*([] if is_last else [tokens]), **({"target": target} if is_last else {}))
    except pipeline.PipelineError as error:
        return str(error)


# torch calls the loss function once before the first step.
@pytest.mark.parametrize(("calls", "step", "part"), [(0, 1, 0), (7, 2, 2)])
def test_a_loss_that_hangs(calls: int, step: int, part: int, stages: dict[int, Path]) -> None:
    with ranks(2, steps_until_a_loss_hangs, stages[2], calls) as running:
        running.processes[0].join(30)
        running.processes[1].kill()
        text, _ = running.results(10)
    assert text.startswith(
        f"rank 1 (stage 1) hangs in step {step}, loss of microbatch {part}, since "
    )


def agreed(path: Path, how: dict[str, Any]) -> Any:
    """Load and build, where one rank is in another position."""
    rank = distributed.get_rank()
    if rank == 1 and how.get("absent"):
        time.sleep(4)
        return None
    options = {"timeout": 2.0}
    stages = pipeline.load_stages(how["other"] if rank == 1 and "other" in how else path, **options)
    parts = how["parts"] if rank == 1 and "parts" in how else 4
    given = how.get("given", [{}, {}])[rank]
    pipeline.build_schedule("1F1B", stages, parts, **given, **options)
    return "built"


def both(path: Path, **how: Any) -> list[str]:
    found = run_ranks(2, agreed, path, how, fails=True)
    assert all(isinstance(each, str) for each in found), found
    return found


def test_they_agree(stages: dict[int, Path], tmp_path: Path) -> None:
    assert both(stages[2]) == ["built", "built"]


def test_another_plan(stages: dict[int, Path], tmp_path: Path) -> None:
    plan = pipeline.plan(tied(), 2, "bytes")
    changed = pipeline.plan(tied(layers=5), 2)
    assert plan.graph_hash != changed.graph_hash
    pipeline.save_stages(tied(layers=5), tmp_path / "other", changed)
    first, second = both(stages[2], other=tmp_path / "other")
    assert first == second
    assert first.startswith("PipelineError: rank 1 (stage 1) has a program with the hash ")


def test_another_file(stages: dict[int, Path], tmp_path: Path) -> None:
    program = tied()
    with torch.no_grad():
        next(iter(program.state_dict.values())).add_(1)
    pipeline.save_stages(program, tmp_path / "other", 2)
    first, second = both(stages[2], other=tmp_path / "other")
    assert first == second
    assert first.startswith("PipelineError: rank 1 (stage 1) has files with the digest ")


def test_other_settings(stages: dict[int, Path], tmp_path: Path) -> None:
    first, second = both(stages[2], parts=2)
    assert first == second
    assert first == (
        "PipelineError: rank 1 (stage 1) has the schedule 1f1b of 2 microbatches, and rank 0 "
        "1f1b of 4 microbatches"
    )


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ([{"loss_fn": loss_of}, {}], "has no loss_fn, and rank 0 a loss_fn"),
        ([{}, {"loss_fn": loss_of}], "has a loss_fn, and rank 0 no loss_fn"),
        (
            [{"loss_fn": loss_of}, {"loss_fn": loss_of, "scale_grads": False}],
            "has scale_grads False, and rank 0 True",
        ),
    ],
)
def test_one_rank_trains_otherwise(
    given: list[dict[str, Any]], text: str, stages: dict[int, Path]
) -> None:
    first, second = both(stages[2], given=given)
    assert first == second
    assert first == f"PipelineError: rank 1 (stage 1) {text}"


def test_both_train(stages: dict[int, Path]) -> None:
    """A default that one rank spells out is the same, and so are functions of the same kind."""
    given = [{"loss_fn": loss_of}, {"loss_fn": torch.nn.functional.mse_loss, "scale_grads": True}]
    assert both(stages[2], given=given) == ["built", "built"]


def test_another_number_of_stages(stages: dict[int, Path], tmp_path: Path) -> None:
    first, second = both(stages[2], other=stages[3])
    assert first == second
    assert first == (
        "PipelineError: rank 1 (stage unknown): PipelineError: 1F1B on 2 ranks runs 2 stages, not 3"
    )


def test_a_file_that_was_changed(stages: dict[int, Path], tmp_path: Path) -> None:
    """Between planning and loading, and whole in itself."""
    shutil.copytree(stages[2], tmp_path / "other")
    program = tied()
    with torch.no_grad():
        for value in program.state_dict.values():
            value.add_(1)
    pipeline.save_stages(program, tmp_path / "third", 2)
    shutil.copy(tmp_path / "third" / "stage_1.pt2", tmp_path / "other" / "stage_1.pt2")
    first, second = both(tmp_path / "other")
    assert first == second
    assert first == (
        "PipelineError: rank 1 (stage 1): PipelineError: stage_1.pt2 has changed since it was "
        "written with its manifest"
    )


def test_a_damaged_file(stages: dict[int, Path], tmp_path: Path) -> None:
    shutil.copytree(stages[2], tmp_path / "other")
    file = tmp_path / "other" / "stage_0.pt2"
    data = bytearray(file.read_bytes())
    place = data.index(b"graph_module")
    data[place] ^= 1
    file.write_bytes(data)
    first, second = both(tmp_path / "other")
    assert first == second
    assert first.startswith("PipelineError: rank 0 (stage 0): ArchiveError: record ")


@pytest.mark.parametrize("kind", ["file", "hash", "tcp"])
def test_each_store_says_that_a_key_is_not_there(kind: str, tmp_path: Path) -> None:
    store = {
        "file": lambda: distributed.FileStore(str(tmp_path / "store"), 1),
        "hash": distributed.HashStore,
        "tcp": lambda: distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False),
    }[kind]()
    store.set("here", "a text")
    assert text_of(store, "here", 5) == "a text"
    assert text_of(store, "not here", 0.1) is None


def test_a_store_that_has_gone() -> None:
    store = distributed.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    client = distributed.TCPStore("127.0.0.1", store.port, None, False, wait_for_workers=False)
    del store
    with pytest.raises(RuntimeError):
        text_of(client, "key", 5)


def test_a_rank_that_is_late(stages: dict[int, Path], tmp_path: Path) -> None:
    found = run_ranks(2, agreed, stages[2], {"absent": True}, fails=True)
    assert found == ["PipelineError: rank 1 (stage 1) did not answer within 2 s", None]
