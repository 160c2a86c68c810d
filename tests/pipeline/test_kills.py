"""Ranks are killed at any place: every other ends and names the one, and no process is left."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from torch import distributed

from fxpress import pipeline
from fxpress._torch.distributed import CONNECTING
from tests.support.pipelines import batches, loss_of, tied
from tests.support.ranks import ranks, run_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS, RUNS = 4, 16
TIMEOUT = 8.0
PHASES = ("load", "build", "first step", "second step")  # the first exchanges metadata


class Calls:
    """Counts the calls of functions in each phase, in Python and in C, and kills at one of them.

    Args:
        phase: in which to kill.
        last: the call at which to kill, from 1; 0 for none.
    """

    def __init__(self, phase: str = "", last: int = 0) -> None:
        self.counts: dict[str, int] = {}
        self._phase, self._last = phase, last

    @contextmanager
    def counted(self, phase: str) -> Iterator[None]:
        count, last = 0, self._last if phase == self._phase else 0

        def note(_: Any, event: str, __: Any) -> None:
            nonlocal count
            if event in ("call", "c_call"):
                count += 1
                if count == last:
                    os.kill(os.getpid(), signal.SIGKILL)

        def note_where_ranks_connect(*event: Any) -> None:
            if threading.current_thread().name == CONNECTING:
                note(*event)

        sys.setprofile(note)
        threading.setprofile(note_where_ranks_connect)
        try:
            yield
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
            self.counts[phase] = count


def train_in_phases(path: Path, bad: int, phase: str, last: int) -> dict[str, int]:
    """Take steps; the rank `bad` dies at a call. Returns the number of calls in each phase."""
    rank = distributed.get_rank()
    calls = Calls(phase, last) if rank == bad else Calls()
    with calls.counted("load"):
        stages = pipeline.load_stages(path, timeout=TIMEOUT)
    with calls.counted("build"):
        built = pipeline.build_schedule("1F1B", stages, 4, loss_fn=loss_of, timeout=TIMEOUT)
    (tokens, target) = batches(1)[0]
    target_of = {"target": target} if rank == RANKS - 1 else {}
    for step in (*PHASES[2:], "third step"):
        with calls.counted(step):
            built.step(*([tokens] if rank == 0 else []), **target_of)
    return calls.counts


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stages")
    pipeline.save_stages(tied(), folder / "saved", RANKS)
    return folder / "saved"


@pytest.fixture(scope="module")
def calls(stages: Path) -> list[dict[str, int]]:
    """Return the calls in each phase of each rank."""
    found = run_ranks(RANKS, train_in_phases, stages, -1, "", 0)
    assert all(set(PHASES) < set(each) for each in found)
    return found


def check_killed(stages: Path, bad: int, phase: str, last: int) -> None:
    """Kill a rank at a call, and see what the others say."""
    where = f"rank {bad}, {phase}, call {last}"
    with ranks(RANKS, train_in_phases, stages, bad, phase, last) as running:
        running.processes[bad].join(60)
        # Each waits for at most the timeout; three runs share the processor.
        found = running.results(3 * TIMEOUT)
        assert running.processes[bad].exitcode == -signal.SIGKILL, where
        assert not any(running.is_left()), where
    assert found.pop(bad) is None
    assert len(set(found)) == 1, (where, found)
    name = f"PipelineError: rank {bad} (stage {bad})"
    assert found[0] in (
        f"{name} did not answer within {TIMEOUT:g} s",
        f"{name} has died: it stopped sending heartbeats",
    ), (where, found)


@pytest.mark.parametrize(("bad", "phase"), [(0, "first step")])
def test_a_killed_rank(bad: int, phase: str, stages: Path, calls: list[dict[str, int]]) -> None:
    check_killed(stages, bad, phase, calls[bad][phase] // 2)


def one_dies_and_one_fails(path: Path) -> None:
    """Rank 1 dies when it has made its group, and rank 2 fails because of it; others have one."""
    from fxpress._torch import distributed as torch_distributed

    made, rank = torch_distributed.new_group, distributed.get_rank()

    def make(*args: Any) -> Any:
        group = made(*args)
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if rank == 2:
            time.sleep(0.5)
            raise RuntimeError("[gloo/transport] Connection closed by peer")
        return group

    torch_distributed.new_group = make
    stages = pipeline.load_stages(path, timeout=TIMEOUT)
    pipeline.build_schedule("1F1B", stages, 4, loss_fn=loss_of, timeout=TIMEOUT)


def test_a_rank_that_fails_before_it_agrees(stages: Path) -> None:
    with ranks(RANKS, one_dies_and_one_fails, stages) as running:
        found = running.results(60)
    assert found.pop(1) is None
    assert set(found) == {"PipelineError: rank 1 (stage 1) has died: it stopped sending heartbeats"}


@pytest.mark.slow("16 runs of four processes")
def test_ranks_killed_at_random(stages: Path, calls: list[dict[str, int]]) -> None:
    """While they load, agree and make groups, exchange metadata, and take a step."""
    chance = random.Random(0)
    with ThreadPoolExecutor(3) as pool:
        runs = []
        for run in range(RUNS):
            bad, phase = chance.randrange(RANKS), PHASES[run % len(PHASES)]
            last = chance.randint(1, calls[bad][phase])
            task = (check_killed, stages, bad, phase, last)
            runs.append(pool.submit(*task))
        for each in runs:
            each.result()
