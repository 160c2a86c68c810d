"""Run a function on several ranks of torch.distributed, each a process of its own."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

# Processes are forked from one that has imported what they need.
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ["torch", "fxpress.pipeline", "fxpress.checkpoint", "tests.support.stage_ranks"]
_CONTEXT.set_forkserver_preload(_PRELOADED)


class Ranks:
    """Processes that run.

    Attributes:
        processes: by rank.
        folder: where they leave what they return.
    """

    def __init__(self, function: Callable[..., Any], size: int, folder: Path, *args: Any) -> None:
        self.folder = folder
        self.store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.processes = [
            _CONTEXT.Process(
                target=_run, args=(function, rank, size, self.store.port, folder, *args)
            )
            for rank in range(size)
        ]
        for each in self.processes:
            each.start()

    def results(self, timeout: float) -> list[Any]:
        """Return what each rank returned; the text of its exception where it raised one."""
        end = time.monotonic() + timeout
        for each in self.processes:
            each.join(max(0.0, end - time.monotonic()))
        late = [rank for rank, each in enumerate(self.processes) if each.is_alive()]
        assert not late, f"ranks {late} still run after {timeout} s"
        return [self._result(rank) for rank in range(len(self.processes))]

    def _result(self, rank: int) -> Any:
        file = self.folder / f"result_{rank}"
        return torch.load(file, weights_only=False) if file.exists() else None

    def is_left(self) -> list[bool]:
        """Return whether a process of each rank's session is still there: it or its children."""
        return [_has_processes(each.pid) for each in self.processes]

    def end(self) -> None:
        """End what still runs."""
        for each in self.processes:
            each.kill()
            each.join()


def _has_processes(session: int | None) -> bool:
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            text = (entry / "stat").read_text().rpartition(")")[2].split()
            if entry.name.isdigit() and int(text[3]) == session and text[0] not in "ZX":
                return True
    return False


@contextmanager
def ranks(function: Callable[..., Any], size: int, folder: Path, *args: Any) -> Iterator[Ranks]:
    """Return a block in which `function(rank, *args)` runs on all ranks."""
    folder.mkdir(exist_ok=True)
    made = Ranks(function, size, folder, *args)
    try:
        yield made
    finally:
        made.end()


def run_ranks(
    function: Callable[..., Any], size: int, folder: Path, *args: Any, timeout: float = 120
) -> list[Any]:
    """Return what `function(rank, *args)` returns on each rank, or the text of its exception."""
    with ranks(function, size, folder, *args) as made:
        return made.results(timeout)


def _run(
    function: Callable[..., Any], rank: int, size: int, port: int, folder: Path, *args: Any
) -> None:
    os.setsid()
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    store = distributed.TCPStore("127.0.0.1", port, is_master=False)
    timeout = datetime.timedelta(seconds=60)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        result = function(rank, *args)
    except Exception as error:
        traceback.print_exc()
        result = f"{type(error).__name__}: {error}"
    torch.save(result, folder / f"writing_{rank}")
    (folder / f"writing_{rank}").rename(folder / f"result_{rank}")
    if not isinstance(result, str):
        distributed.destroy_process_group()
