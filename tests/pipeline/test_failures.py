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
from fxpress._distributed.pipeline.agreement import text_of
from tests.support.pipelines import batches, loss_of, tied
from tests.support.ranks import ranks, run_ranks
from tests.support.sampled import turns


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("stages")
    for count in (2, 3, 4):
        pipeline.save_stages(tied(), folder / f"{count}", count)
    return {count: folder / f"{count}" for count in (2, 3, 4)}


def steps_until(path: Path, bad: int, what: str, timeout: float) -> Any:
    """Run steps; the second one fails on the rank `bad`. Return the error and the time."""
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
@pytest.mark.parametrize(("what", "bad"), turns(["raise", "die", "hang"], range(3), 2))
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
    assert max(taken for _, taken in found) < 2 * timeout  # other tests run too


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
        f"rank 1 (stage 1) hangs in step {step}, loss of microbatch {part}: no progress for "
    )


def steps_until_backward_hangs(path: Path) -> str | None:
    """Run steps, until the gradient of a parameter of stage 3 is never computed."""
    loaded = pipeline.load_stages(path, "InterleavedZeroBubble")
    built = pipeline.build_schedule("InterleavedZeroBubble", loaded, 4, loss_fn=loss_of, timeout=4)
    if loaded[-1].number == 3:
        parameters = dict(loaded[-1].module.named_parameters())
        parameters["layers.3.down.bias"].register_hook(lambda _: time.sleep(1000))
    tokens, target = batches(1)[0]
    is_first = loaded[0].number == 0
    try:
        built.step(*([tokens] if is_first else []), **({} if is_first else {"target": target}))
    except pipeline.PipelineError as error:
        return str(error)
    return None


def test_a_backward_of_weights_that_hangs(stages: dict[int, Path]) -> None:
    with ranks(2, steps_until_backward_hangs, stages[4]) as running:
        running.processes[0].join(30)
        running.processes[1].kill()
        text, _ = running.results(10)
    assert text.startswith(
        "rank 1 (stages 1, 3) hangs in step 1, backward of weights of microbatch 0: no progress"
    )


def steps_until_shapes_hang(path: Path, where: str) -> str | None:
    """Run a step, of which torch's first run of a stage never ends."""
    (stage,) = pipeline.load_stages(path)
    built = pipeline.build_schedule("GPipe", stage, 4, loss_fn=loss_of, timeout=4)
    tokens, target = batches(1)[0]
    is_last = stage.number + 1 == stage.count
    if is_last and where == "forward":
        stage.module.register_forward_pre_hook(lambda *_: time.sleep(1000))
    if is_last and where == "backward":
        stage.module.register_full_backward_hook(lambda *_: time.sleep(1000))
    try:
        built.step(*([] if is_last else [tokens]), **({"target": target} if is_last else {}))
    except pipeline.PipelineError as error:
        return str(error)
    return None


@pytest.mark.parametrize(
    ("where", "text"),
    [("forward", "inference of shapes"), ("backward", "inference of shapes of gradients")],
)
def test_an_inference_of_shapes_that_hangs(where: str, text: str, stages: dict[int, Path]) -> None:
    with ranks(2, steps_until_shapes_hang, stages[2], where) as running:
        running.processes[0].join(30)
        running.processes[1].kill()
        found, _ = running.results(10)
    assert found.startswith(f"rank 1 (stage 1) hangs in step 1, {text}: no progress for ")


def step_that_one_refuses(path: Path, what: str, over: Path) -> tuple[str, float]:
    """Run steps with a long timeout; rank 1 refuses the second, and outlives the others.

    Returns the error, and the seconds until it came.
    """
    rank = distributed.get_rank()
    (stage,) = pipeline.load_stages(path)
    built = pipeline.build_schedule("1F1B", stage, 4, loss_fn=loss_of, timeout=60)
    tokens, target = batches(1)[0]
    is_last = stage.number + 1 == stage.count

    def wrong(*_: Any) -> None:
        raise ValueError("something is wrong")

    def step(**wrongly: Any) -> None:
        given = {"target": target} if is_last else {}
        built.step(*([tokens] if rank == 0 else []), **{**given, **wrongly})

    step()
    if rank == 1 and what == "raise":
        stage.module.register_forward_hook(wrong)
    start = time.monotonic()
    with pytest.raises(pipeline.PipelineError) as caught:
        step(**({"target": target[:3]} if rank == 1 and what == "target" else {}))
    taken = time.monotonic() - start
    (over / f"{rank}").touch()
    while rank == 1 and time.monotonic() < start + 20 and len(list(over.iterdir())) < 3:
        time.sleep(0.1)
    with pytest.raises(pipeline.PipelineError) as again:
        step()
    assert str(again.value) == str(caught.value)
    return str(caught.value), taken


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ("target", "a target with batch size 3 cannot be divided into 4 microbatches"),
        ("raise", "ValueError: something is wrong"),
    ],
)
def test_who_waits_for_a_rank_that_failed_ends_at_once(
    what: str, text: str, stages: dict[int, Path], tmp_path: Path
) -> None:
    """Also one that waits for another which waits, and though the rank itself lives on."""
    found = run_ranks(3, step_that_one_refuses, stages[3], what, tmp_path)
    assert {error for error, _ in found} == {f"rank 1 (stage 1): {text}"}
    assert max(taken for _, taken in found) < 10


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
    """Ranks may pass a default explicitly, or an equal function, and still agree."""
    given = [{"loss_fn": loss_of}, {"loss_fn": torch.nn.functional.mse_loss, "scale_grads": True}]
    assert both(stages[2], given=given) == ["built", "built"]


def test_one_rank_has_options_that_torch_refuses(stages: dict[int, Path]) -> None:
    first, second = both(stages[2], given=[{}, {"no_such_option": 1}])
    assert first == second
    assert first.startswith("PipelineError: rank 1 (stage 1): TypeError: ")
    assert "no_such_option" in first


def built_again(path: Path, wrong: dict[int, dict[str, Any]]) -> tuple[list[str], float]:
    """Build a schedule: with arguments that some ranks refuse; if it fails, with sound ones."""
    rank, found = distributed.get_rank(), []
    loaded = pipeline.load_stages(path)
    start = time.monotonic()
    for arguments in (wrong.get(rank, {}), {}):
        try:
            options = {"n_microbatches": 4, "timeout": 60, **arguments}
            pipeline.build_schedule("1F1B", loaded, **options)
            found.append("built")
            break
        except (pipeline.PipelineError, TypeError, ValueError) as error:
            found.append(f"{type(error).__name__}: {error}")
    return found, time.monotonic() - start


@pytest.mark.parametrize(
    ("bad", "wrong", "text"),
    [
        (0, {"loss_fn": "mse"}, "TypeError: expected loss_fn to be a function, got a str"),
        (1, {"loss_fn": "mse"}, "TypeError: expected loss_fn to be a function, got a str"),
        (
            1,
            {"n_microbatches": 0},
            "ValueError: expected n_microbatches to be a positive int, got 0",
        ),
        (
            1,
            {"timeout": 0},
            "ValueError: expected timeout to be a positive number of seconds, got 0",
        ),
    ],
)
def test_nobody_waits_for_a_rank_that_refuses_an_argument(
    bad: int, wrong: dict[str, Any], text: str, stages: dict[int, Path]
) -> None:
    """All ranks can try again; rank 1 in the same round, if rank 0 has not joined it yet."""
    found = run_ranks(2, built_again, stages[2], {bad: wrong})
    for rank, (texts, taken) in enumerate(found):
        assert taken < 20
        assert texts.pop() == "built"
        if rank == bad:
            assert texts == [text]
        elif bad == 0 or texts:
            assert texts == [f"PipelineError: rank {bad} (stage {bad}): {text}"]


def test_another_number_of_stages(stages: dict[int, Path], tmp_path: Path) -> None:
    first, second = both(stages[2], other=stages[3])
    assert first == second
    assert first == ("PipelineError: rank 1 (stage unknown): 1F1B on 2 ranks runs 2 stages, not 3")


def test_a_file_that_was_changed(stages: dict[int, Path], tmp_path: Path) -> None:
    """A file is replaced between planning and loading, by another valid file."""
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
        "PipelineError: rank 1 (stage 1): stage_1.pt2 has changed since it was written with its "
        "manifest"
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
    assert first.startswith("PipelineError: rank 0 (stage 0): ArchiveError: /")
    assert "/stage_0.pt2: record " in first


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
