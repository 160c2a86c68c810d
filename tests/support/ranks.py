"""Run processes of torch.distributed on this machine; all of them end with the test.

The processes are forks of a server that has imported torch, so that they start in little time.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import pickle
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from tests.support.hosts import Hosts, enter
from tests.support.links import address_of

_PORT = 29500  # the port of the store if ranks run on separate hosts
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(
    ["fxpress.pipeline", "fxpress.checkpoint", "torch.distributed.fsdp", __name__]
)


class RankError(AssertionError):
    """A rank has raised an exception, was killed, or did not end."""


@dataclass
class _Outcome:
    """The outcome of a rank.

    Attributes:
        value: the result of its function; the text of its exception; None if it was killed.
        fault: the error, as text for the report of a failed test; "" if there is no error.
    """

    value: Any = None
    fault: str = ""


@dataclass
class _Place:
    """Where a rank runs, and how it connects to the other ranks.

    Attributes:
        rank: the number of the rank.
        size: the number of ranks.
        folder: the folder in which the rank writes its outcome.
        address: the address of the store.
        port: the port of the store.
        host: the network namespace of the rank; "": the test's namespace.
        collective: the timeout of torch's collectives, in seconds.
    """

    rank: int
    size: int
    folder: Path
    address: str
    port: int
    host: str
    collective: float


class Ranks:
    """The processes of ranks.

    Attributes:
        processes: the process of each rank.
    """

    def __init__(
        self,
        size: int,
        function: Callable[..., Any],
        *args: Any,
        folder: Path,
        collective: float,
        hosts: Hosts | None,
    ) -> None:
        self._folder = folder
        if hosts is None:
            self._store = distributed.TCPStore(
                "127.0.0.1", 0, is_master=True, wait_for_workers=False
            )
        names = [""] * size if hosts is None else hosts.names
        address = "127.0.0.1" if hosts is None else address_of(0)
        port = self._store.port if hosts is None else _PORT
        places = [
            _Place(rank, size, folder, address, port, names[rank], collective)
            for rank in range(size)
        ]
        self.processes = [
            _context.Process(target=_run, args=(place, function, *args), daemon=True)
            for place in places
        ]
        for each in self.processes:
            each.start()

    def results(self, timeout: float) -> list[Any]:
        """Return the result of each rank, the text of its exception, or None if it was killed.

        Raises:
            RankError: a rank still runs after `timeout` seconds.
        """
        return [each.value for each in self.outcomes(timeout)]

    def outcomes(self, timeout: float) -> list[_Outcome]:
        """Return the outcome of each rank; see `results`."""
        end = time.monotonic() + timeout
        for each in self.processes[1:]:
            each.join(max(0.0, end - time.monotonic()))
        (self._folder / "over").touch()
        self.processes[0].join(max(0.0, end - time.monotonic()))
        late = [rank for rank, each in enumerate(self.processes) if each.is_alive()]
        found = [self._outcome(rank) for rank in range(len(self.processes))]
        if late:
            raise RankError(f"the ranks {late} have not ended after {timeout} s: {found}")
        return found

    def _outcome(self, rank: int) -> _Outcome:
        file = self._folder / f"{rank}"
        if not file.exists():
            return _Outcome(fault=f"rank {rank} was killed")
        outcome: _Outcome = pickle.loads(file.read_bytes())
        return outcome

    def is_left(self) -> list[bool]:
        """Return for each rank whether its process, or a child process, still exists."""
        return [_has_processes(each.pid) for each in self.processes]

    def end(self) -> None:
        """End the ranks that are still running."""
        for each in self.processes:
            each.kill()
            each.join()


@contextlib.contextmanager
def ranks(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    collective: float = 60,
    hosts: Hosts | None = None,
) -> Iterator[Ranks]:
    """Return a block in which `function(*args)` runs on all ranks.

    Args:
        size: the number of ranks.
        function: a function of a module.
        args: its arguments, which can be pickled.
        collective: the timeout of torch's collectives, in seconds.
        hosts: a host for each rank; None: all ranks run on this host.
    """
    with tempfile.TemporaryDirectory(prefix="fxpress-ranks-") as name:
        made = Ranks(size, function, *args, folder=Path(name), collective=collective, hosts=hosts)
        try:
            yield made
        finally:
            made.end()


def run_ranks(
    size: int,
    function: Callable[..., Any],
    *args: Any,
    timeout: float = 120,
    collective: float = 60,
    fails: bool = False,
) -> list[Any]:
    """Return what `function(*args)` has returned on each rank, see `ranks`.

    Args:
        size: the number of ranks.
        function: a function of a module.
        args: its arguments, which can be pickled.
        timeout: seconds after which processes are killed, and the test fails.
        collective: the timeout of torch's collectives, in seconds.
        fails: whether a rank may be killed or raise an exception, see `Ranks.results`.

    Raises:
        RankError: a rank has not ended in time, has raised an exception, or was killed.
    """
    with ranks(size, function, *args, collective=collective) as made:
        found = made.outcomes(timeout)
    faults = [each.fault for each in found if each.fault]
    if faults and not fails:
        raise RankError("\n".join(faults))
    return [each.value for each in found]


def _run(place: _Place, function: Callable[..., Any], *args: Any) -> None:
    os.setsid()
    if place.host:
        enter(place.host)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0" if place.host else "lo"
    keeps_store = bool(place.host) and place.rank == 0
    store = distributed.TCPStore(
        place.address, place.port, is_master=keeps_store, wait_for_workers=False
    )
    distributed.init_process_group(
        "gloo",
        store=store,
        rank=place.rank,
        world_size=place.size,
        timeout=datetime.timedelta(seconds=place.collective),
    )
    try:
        outcome = _Outcome(function(*args))
    except Exception as error:
        fault = f"rank {place.rank}: {traceback.format_exc()}"
        outcome = _Outcome(f"{type(error).__name__}: {error}", fault)
    (place.folder / f"{place.rank}.new").write_bytes(pickle.dumps(outcome))
    (place.folder / f"{place.rank}.new").rename(place.folder / f"{place.rank}")
    while keeps_store and not (place.folder / "over").exists():  # others search it for errors
        time.sleep(0.05)
    if not outcome.fault:
        distributed.destroy_process_group()


def _has_processes(session: int | None) -> bool:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            text = (entry / "stat").read_text().rpartition(")")[2].split()
            if entry.name.isdigit() and int(text[3]) == session and text[0] not in "ZX":
                return True
    return False


def die() -> None:
    """End this process at once, as the system does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)
