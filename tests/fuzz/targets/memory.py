"""The memory that reading an input uses."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path

_MEGABYTE = 1 << 20
_PAGE = resource.getpagesize()


def promised(size: int) -> int:
    """The bytes that loading a file of so many bytes may take."""
    return 10 * size + 256 * _MEGABYTE


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _pages() -> tuple[int, int]:
    """Return the numbers of all pages of the process, and of pages in memory."""
    total, resident, *_ = Path("/proc/self/statm").read_text().split()
    return int(total), int(resident)


@contextlib.contextmanager
def at_most(allowed: int) -> Iterator[None]:
    """AssertionError when the block takes more bytes at its peak.

    A peak below an earlier one of the process is not seen.
    """
    before, earlier_peak = _pages()[1] * _PAGE, _peak()
    yield
    peak = _peak()
    assert peak == earlier_peak or peak - before <= allowed, f"{(peak - before) >> 20} MB"


@contextlib.contextmanager
def limited(allowed: int) -> Iterator[None]:
    """Allocations above a number of bytes fail in the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    component = _pages()[0] * _PAGE + allowed
    resource.setrlimit(
        resource.RLIMIT_AS, (component if soft == -1 else min(soft, component), hard)
    )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
