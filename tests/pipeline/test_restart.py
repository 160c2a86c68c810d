"""torchrun starts the ranks anew when one dies, and training goes on from the last checkpoint."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed.checkpoint as dcp

from fxpress.checkpoint import ArchiveReader
from tests.support import killed_once

PROGRAM = Path(__file__).parents[2] / "examples" / "pipeline.py"
STEPS = 8
LOSS = re.compile(r"step (\d+): loss (\d+\.\d{7})")
# The ranks write to one pipe, the text and the end of a line apart.
END = re.compile(r"stage (\d+) has the weights of the whole model")
pytestmark = pytest.mark.slow("ranks of torchrun, which import torch twice")


def losses_of(folder: Path, *command: str) -> list[tuple[str, str]]:
    """Return the numbers and losses of the steps that a run prints, in order."""
    arguments = [
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", "2", "--max-restarts", "2", *command),
    ]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(sys.path),
        # Else the ranks of the second try may find the addresses of the first in torch's store.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }
    with (
        (folder / "errors").open("w") as errors,
        subprocess.Popen(
            arguments, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as run,
    ):
        try:
            said, _ = run.communicate(timeout=240)
        except BaseException:
            for each in [*psutil.Process(run.pid).children(recursive=True), run]:
                each.kill()
            raise
    assert run.returncode == 0, (folder / "errors").read_text()
    assert sorted(END.findall(said)) == ["0", "1"], said
    return LOSS.findall(said)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    found = losses_of(tmp_path_factory.mktemp("undisturbed"), str(PROGRAM))
    assert [number for number, _ in found] == [str(step) for step in range(STEPS)]
    return dict(found)


class Reading:
    """Reads the checkpoint again and again while a run goes on, and keeps what steps it was of."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._stopped = folder, threading.Event()
        self.begins: list[int] = []
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        while not self._stopped.wait(0.05):
            if (self._folder / "model.safetensors.index.json").exists():
                state = {"begin": 0, "model_state_dict": {"0.1.weight": torch.zeros(32, 32)}}
                try:
                    dcp.load(state, storage_reader=ArchiveReader(self._folder), no_dist=True)
                except Exception as error:
                    self.error = error
                    return
                self.begins.append(state["begin"])

    def __enter__(self) -> Reading:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()


@pytest.mark.parametrize(("place", "rank"), [("step", 1), ("finish", 0)])
def test_a_rank_is_killed_once(
    place: str, rank: int, undisturbed: dict[str, str], tmp_path: Path
) -> None:
    last = random.Random(f"{place} {rank}").randint(2, STEPS)
    command = (killed_once.__file__, str(PROGRAM), str(rank), place, str(last))
    found = losses_of(tmp_path, *command)
    assert (tmp_path / "killed").exists()
    steps = [int(number) for number, _ in found]
    # The step whose checkpoint was not whole is taken anew, and no other.
    anew = last - 1
    assert steps in ([*range(anew), *range(anew, STEPS)], [*range(anew + 1), *range(anew, STEPS)])
    assert all(undisturbed[number] == loss for number, loss in found)


def test_checkpoints_are_whole_while_a_rank_is_killed(
    undisturbed: dict[str, str], tmp_path: Path
) -> None:
    """Another process sees no half of one."""
    command = (killed_once.__file__, str(PROGRAM), "1", "write", str(STEPS // 2))
    with Reading(tmp_path / "pipeline-run" / "checkpoint") as reading:
        found = losses_of(tmp_path, *command)
    assert reading.error is None
    assert reading.begins == sorted(reading.begins)
    assert dict(found) == undisturbed
