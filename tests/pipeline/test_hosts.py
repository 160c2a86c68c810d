"""Ranks on separate hosts, which are network namespaces, with slow links and cut links."""

from __future__ import annotations

import time
from pathlib import Path

import psutil
import pytest
import torch
from torch import distributed

from fxpress import pipeline
from tests.support.hosts import Hosts, hosts
from tests.support.links import Link
from tests.support.pipelines import batches, loss_of, tied, train, trained_whole
from tests.support.ranks import ranks

TIMEOUT = 8.0
NEAR, DELAYED, LOSSY, FAR = Link(), Link(0.02), Link(0.02, 0.01), Link(0.2)
JITTER = 0.02  # seconds that a busy machine adds to the least of several round trips
pytestmark = pytest.mark.slow("processes on separate hosts, and slow links")


def timeout_of(link: Link) -> float:
    """Seconds that are enough for a step on a busy machine: its messages are slow on far links."""
    return 3 * TIMEOUT if link is FAR else TIMEOUT


def check_delays(made: Hosts, links: list[Link]) -> None:
    """Fail unless packets have the configured delay."""
    for number in range(1, len(links)):
        least = links[0].delay + links[number].delay
        assert least <= made.round_trip(number, 0) < least + JITTER


@pytest.mark.parametrize(
    ("size", "link", "steps"),
    [
        *((size, link, 4) for size in (2, 4) for link in (NEAR, DELAYED, LOSSY)),
        (2, FAR, 2),  # hosts that are far away are alive
    ],
    ids=str,
)
def test_training(size: int, link: Link, steps: int, tmp_path: Path) -> None:
    program = tied()
    pipeline.save_stages(program, tmp_path / "stages", size)
    wanted, state = trained_whole(program, steps)
    with hosts([link] * size) as made:
        check_delays(made, [link] * size)
        arguments = (tmp_path / "stages", "1F1B", steps, timeout_of(link))
        with ranks(size, train, *arguments, hosts=made) as running:
            found = running.results(100)
        assert (made.network.lost() > 0) == (link.loss > 0)
    assert not any(isinstance(each, str) for each in found), found
    losses = [max(each) for each in zip(*(losses for losses, _ in found), strict=True)]
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted), rtol=1e-5, atol=1e-5)
    for _, own in found:
        for name, value in own.items():
            torch.testing.assert_close(value, state[name], rtol=1e-4, atol=1e-5)


def step_until_an_error(path: Path, marks: Path, timeout: float) -> tuple[str, float]:
    """Take steps; return the text of the error, and the seconds that the step took."""
    rank = distributed.get_rank()
    (stage,) = pipeline.load_stages(path, "1F1B")
    built = pipeline.build_schedule("1F1B", stage, 4, loss_fn=loss_of, timeout=timeout)
    tokens, target = batches(1)[0]
    last = {"target": target} if stage.number + 1 == stage.count else {}
    while True:
        start = time.monotonic()
        try:
            built.step(*([tokens] if rank == 0 else []), **last)
        except pipeline.PipelineError as error:
            return str(error), time.monotonic() - start
        (marks / f"stepped_{rank}").touch()


@pytest.mark.parametrize(
    ("what", "bad", "links"),
    [
        *((what, bad, [NEAR] * 3) for what in ("killed", "cut") for bad in range(3)),
        ("killed", 1, [LOSSY] * 3),
        ("killed", 2, [FAR] * 3),  # rank 1 is slow, and alive
    ],
    ids=lambda each: " - ".join(map(str, each)) if isinstance(each, list) else str(each),
)
def test_a_host(what: str, bad: int, links: list[Link], tmp_path: Path) -> None:
    pipeline.save_stages(tied(), tmp_path / "stages", 3)
    with hosts(links) as made:
        check_delays(made, links)
        timeout = timeout_of(links[0])
        arguments = (tmp_path / "stages", tmp_path, timeout)
        with ranks(3, step_until_an_error, *arguments, hosts=made) as running:
            end = time.monotonic() + 100
            while not all((tmp_path / f"stepped_{rank}").exists() for rank in range(3)):
                assert time.monotonic() < end
                assert all(each.is_alive() for each in running.processes)
                time.sleep(0.1)
            if what == "killed":
                running.processes[bad].kill()
            else:
                made.network.cut(bad)
            found = running.results(100)
        assert (made.network.lost() > 0) == (links[0].loss > 0)
    assert not any(isinstance(each, str) for each in found), found
    own = found.pop(bad)
    died = f"rank {bad} (stage {bad}) has died: it stopped sending heartbeats"
    unreached = "the store cannot be reached: rank 0 (stage 0) has died, or the network is cut"
    assert {text for text, _ in found} == {unreached if bad == 0 else died}
    assert max(taken for _, taken in found) < 2 * timeout  # other tests run too
    if what == "cut" and bad:  # this host is on its own
        assert own[0] == unreached
        assert own[1] < 2 * timeout


@pytest.mark.parametrize("link", [NEAR, LOSSY], ids=str)
def test_nothing_is_left(link: Link) -> None:
    before = psutil.Process().children(recursive=True)
    with pytest.raises(ZeroDivisionError), hosts([link] * 2) as made:
        names = made.names
        _ = 1 / 0
    left = {path.name for path in Path("/run/netns").iterdir()}
    assert not left & set(names)
    assert psutil.Process().children(recursive=True) == before
