"""Processes of torch.distributed on this machine, all of which have ended when a test has.

The processes are forks of a server that has imported torch, so that they start in little time.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["fxpress.checkpoint", "torch.distributed.fsdp", __name__])


class RankError(AssertionError):
    """A rank has raised an exception, was killed, or did not end."""


def _rank(
    rank: int, world: int, folder: Path, seconds: float, work: Callable[..., Any], *args: Any
) -> None:
    try:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        store = dist.FileStore(str(folder / "store"), world)
        timeout = datetime.timedelta(seconds=seconds)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
        result = ("result", work(*args))
    except BaseException:
        result = ("raised", traceback.format_exc())
    (folder / f"{rank}.new").write_bytes(pickle.dumps(result))
    (folder / f"{rank}.new").rename(folder / f"{rank}")
    with contextlib.suppress(Exception):
        dist.destroy_process_group()
    os._exit(0)  # without waiting for the threads of ranks that are gone


def run_ranks(
    world: int,
    work: Callable[..., Any],
    *args: Any,
    seconds: float = 120,
    collective: float = 60,
    dies: bool = False,
) -> list[Any]:
    """Return what a function has returned in each process.

    Args:
        world: how many.
        work: a function of a module, which each calls with `args`.
        args: its arguments, which can be pickled.
        seconds: after which processes are killed, and the test fails.
        collective: the timeout of torch's collectives, in seconds.
        dies: whether a rank may be killed; then its result is None, and that of a rank that has
            raised an exception is the text of the exception.
    """
    with tempfile.TemporaryDirectory(prefix="fxpress-ranks-") as name:
        folder = Path(name)
        processes = [
            _context.Process(
                target=_rank, args=(rank, world, folder, collective, work, *args), daemon=True
            )
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + seconds
        try:
            for process in processes:
                process.join(max(0, end - time.monotonic()))
            late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                process.join()
        found = [_result(folder / str(rank)) for rank in range(world)]
    if late:
        raise RankError(f"the ranks {late} have not ended after {seconds} s: {found}")
    if not dies:
        for rank, (kind, value) in enumerate(found):
            if kind != "result":
                raise RankError(f"rank {rank}: {value}")
    return [value for _, value in found]


def _result(path: Path) -> Any:
    return pickle.loads(path.read_bytes()) if path.exists() else ("killed", None)


def die() -> None:
    """End this process at once, as the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def bytes_read() -> int:
    """Return the bytes that this process has read by calls of the system, from the cache too."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("the system does not count")


class Peak:
    """The most memory that a block had at a time, besides what was there before."""

    bytes = 0


@contextlib.contextmanager
def peak_of_memory() -> Iterator[Peak]:
    """Measure the memory of this process that a block takes at most."""
    peak = Peak()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    yield peak
    peak.bytes = _status("VmHWM") - before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"the system does not tell {key}")
