"""Load hostile files, each in a new process, and compare memory and time with the promise.

    python benchmarks/bench_hostile.py [NAME ...] [--all]

The promise: loading a file of n bytes uses at most 10 n + 256 MB of memory, and 2 s + 10 s for each
MB of processor time. The table has the files that come closest to these limits, or all files
with --all. The exit status is 1 if a file exceeds a limit or crashes its process.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fuzz import seeds
from tests.fuzz.hostile import CASES, hostile_files
from tests.fuzz.hostile.cases import read_archive

_MEGABYTE = 1 << 20
_PATIENCE = 3  # a load that takes this many times the promised time is stopped
_SHOWN = 20


class Cost(NamedTuple):
    """The cost of loading one file."""

    name: str
    size: int  # bytes
    outcome: str  # "loads", the exception's class, or how the process ended; "!": a failure
    memory: int  # peak bytes, minus the bytes before the load
    seconds: float  # processor time

    @property
    def share(self) -> float:
        """Return the cost as a fraction of the promised maximum."""
        memory = self.memory / (10 * self.size + 256 * _MEGABYTE)
        return max(memory, self.seconds / promised_seconds(self.size))

    @property
    def is_kept(self) -> bool:
        """Return whether the promise is kept."""
        return self.share <= 1 and self.outcome[0] != "!"


def promised_seconds(size: int) -> float:
    """Return the promised limit on processor time for a file of `size` bytes."""
    return 2 + 10 * size / _MEGABYTE


def _status(key: str) -> int:
    """Return a field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) << 10
    raise KeyError(key)


def _read(name: str, data: bytes) -> tuple[str, int, float]:
    Path("/proc/self/clear_refs").write_text("5")  # the peak is measured from here
    before, start = _status("VmRSS"), time.process_time()
    try:
        CASES[name].read(data)
        outcome = "loads"
    except Exception as e:
        outcome = type(e).__name__
        if not isinstance(e, (RuntimeError, ValueError, KeyError, AssertionError)):
            outcome = f"!{outcome}"
    return outcome, _status("VmHWM") - before, time.process_time() - start


def measure(name: str, data: bytes) -> Cost:
    """Return the cost of loading a file in a child of this process."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            seconds = int(_PATIENCE * promised_seconds(len(data))) + 1
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            os.write(writer, json.dumps(_read(name, data)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    patience = 10 * _PATIENCE * promised_seconds(len(data))  # other processes may be running
    ready, _, _ = select.select([reader], [], [], patience)
    answer = os.read(reader, 4096) if ready else b""
    os.close(reader)
    if not answer:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    if not answer:
        ended = "!too long" if os.WTERMSIG(status) in (9, 24) else f"!signal {os.WTERMSIG(status)}"
        return Cost(name, len(data), ended, 0, usage.ru_utime + usage.ru_stime)
    outcome, memory, seconds = json.loads(answer)
    return Cost(name, len(data), outcome, memory, seconds)


def _warm_up() -> None:
    """Load a file first, so that imports and first calls do not count as the cost of a file."""
    for name in ("keys", "guarded"):
        read_archive(seeds.frozen()[name])


def table(costs: list[Cost]) -> str:
    """Return the costs as lines of text."""
    head = f"{'file':52} {'bytes':>9} {'memory':>9} {'time':>8} {'share':>6}  outcome"
    rows = [
        f"{cost.name[:52]:52} {cost.size:9,} {cost.memory / _MEGABYTE:6.0f} MB "
        f"{cost.seconds:6.2f} s {cost.share:5.0%}  {cost.outcome}"
        for cost in costs
    ]
    return "\n".join([head, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="parts of the names of files")
    parser.add_argument("--all", action="store_true", help="a line for every file")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    files = hostile_files()
    _warm_up()
    chosen = [n for n in files if not arguments.names or any(p in n for p in arguments.names)]
    costs = []
    for done, name in enumerate(chosen, 1):
        print(f"\r{done} of {len(chosen)} {name[:60]:60}", end="", file=sys.stderr, flush=True)
        costs.append(measure(name, files[name]))
    print("\r" + " " * 80 + "\r", end="", file=sys.stderr)
    costs.sort(key=lambda cost: (cost.is_kept, -cost.share))
    broken = [cost for cost in costs if not cost.is_kept]
    print(table(costs if arguments.all else costs[: max(_SHOWN, len(broken))]))
    print(f"{len(costs)} files, {len(broken)} over what is promised")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
