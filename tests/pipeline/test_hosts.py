"""Ranks on hosts of their own, which are network namespaces: slow links, and links that are cut."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch

from fxpress import pipeline
from tests.support.hosts import Hosts, hosts
from tests.support.pipelines import tied, trained_whole

TIMEOUT = 8.0
STEPS = 4
pytestmark = pytest.mark.slow("processes that import torch, each on a host of its own")


def start(made: Hosts, path: Path, folder: Path, steps: int, timeout: float) -> list[Any]:
    size = len(made.names)
    arguments = (str(path), str(folder), str(steps), str(timeout))
    common = ("-m", "tests.support.host_rank")
    return [
        made.start(rank, *common, str(rank), str(size), made.address(0), *arguments)
        for rank in range(size)
    ]


def results(running: list[Any], folder: Path, seconds: float) -> list[Any]:
    """Return what each rank has left; None where it left nothing."""
    end = time.monotonic() + seconds
    for each in running:
        each.wait(max(0.1, end - time.monotonic()))
    files = [folder / f"result_{rank}" for rank in range(len(running))]
    return [torch.load(each, weights_only=False) if each.exists() else None for each in files]


@pytest.mark.parametrize("netem", ["", "delay 20ms", "delay 20ms loss 1%"])
@pytest.mark.parametrize("size", [2, 4])
def test_training(size: int, netem: str, tmp_path: Path) -> None:
    program = tied()
    pipeline.save_stages(program, tmp_path / "stages", size)
    wanted, state = trained_whole(program, STEPS)
    with hosts(size, netem) as made:
        running = start(made, tmp_path / "stages", tmp_path, STEPS, 100.0)
        found = results(running, tmp_path, 200)
    assert all(each is not None for each in found)
    losses = [max(each) for each in zip(*(losses for losses, _ in found), strict=True)]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-5, atol=1e-5)
    for _, own in found:
        for name, value in own.items():
            torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("bad", range(3))
@pytest.mark.parametrize("what", ["killed", "cut"])
def test_a_host(what: str, bad: int, tmp_path: Path) -> None:
    pipeline.save_stages(tied(), tmp_path / "stages", 3)
    with hosts(3) as made:
        running = start(made, tmp_path / "stages", tmp_path, 0, TIMEOUT)
        end = time.monotonic() + 100
        while not all((tmp_path / f"stepped_{rank}").exists() for rank in range(3)):
            assert time.monotonic() < end
            assert all(each.poll() is None for each in running)
            time.sleep(0.1)
        if what == "killed":
            running[bad].kill()
        else:
            made.cut(bad)
        found = results(running, tmp_path, 100)
    own = found.pop(bad)
    died = f"rank {bad} (stage {bad}) has died: it gives no sign of life"
    unreached = "the store cannot be reached: rank 0 (stage 0) has died, or the network is cut"
    assert {text for text, _ in found} == {unreached if bad == 0 else died}
    assert max(taken for _, taken in found) < TIMEOUT + 2
    if what == "cut" and bad:  # this host is on its own
        assert own[0] == unreached
        assert own[1] < TIMEOUT + 2


def test_nothing_is_left() -> None:
    with pytest.raises(ZeroDivisionError), hosts(2) as made:
        names = made.names
        made.start(0, "-c", "import time; time.sleep(1000)")
        _ = 1 / 0
    left = {path.name for path in Path("/run/netns").iterdir()}
    assert not left & set(names)
