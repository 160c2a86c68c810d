"""Measure the resident memory of this process, from Linux's /proc."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

_PROC = Path("/proc/self")

Result = TypeVar("Result")


@dataclass(frozen=True)
class Memory:
    """The bytes that a call needed.

    Attributes:
        result: resident memory while the result is live, minus resident memory before the call.
        beyond: peak of resident memory during the call, minus resident memory with the result.
    """

    result: int
    beyond: int


def measure(call: Callable[[], Result]) -> tuple[Result, Memory | None]:
    """Run a call; return its result, and the memory that it needed.

    The memory is None if the system does not report a peak of memory.

    Before and after the call, the allocator's free pages are returned to the system. Otherwise the
    call could use free pages unnoticed, or pages that it frees would count as its result. Parts of
    pages are not returned, so measure in a process that has freed little memory.
    """
    _settle()
    before = _status("VmRSS")
    watched = _reset_high_water()
    result = call()
    peak = _status("VmHWM")
    _settle()
    after = _status("VmRSS")
    if not watched or before is None or peak is None or after is None:
        return result, None
    return result, Memory(after - before, peak - after)


def _settle() -> None:
    gc.collect()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except AttributeError:  # not glibc
        return


def _reset_high_water() -> bool:
    try:
        (_PROC / "clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status(key: str) -> int | None:
    """Return a field of /proc/self/status, in bytes."""
    try:
        lines = (_PROC / "status").read_text().splitlines()
    except OSError:
        return None
    return next((int(x.split()[1]) * 1024 for x in lines if x.startswith(f"{key}:")), None)
