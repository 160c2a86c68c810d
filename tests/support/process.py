"""Measure the memory of this process, and the bytes that it reads."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from pathlib import Path


def bytes_read() -> int:
    """Return the bytes that this process has read by system calls, also from the page cache."""
    for line in Path("/proc/self/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("the system does not count")


class Peak:
    """The peak of memory of a block, minus the memory before."""

    bytes = 0


@contextlib.contextmanager
def peak_of_memory() -> Iterator[Peak]:
    """Measure the peak of this process's memory during a block."""
    peak = Peak()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = _status("VmRSS")
    yield peak
    peak.bytes = _status("VmHWM") - before


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"the system does not tell {key}")
