"""Tells on the error stream what is being measured, and about how long it will take."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """Where a run stands; goes to the process that measures.

    Attributes:
        start: seconds since the epoch when the run began.
        done: what the groups that have been measured were expected to take, seconds.
        left: the same of those that have not, the present one included.
        group_start: seconds since the epoch when the present group began.
    """

    start: float
    done: float
    left: float
    group_start: float

    def __call__(self, text: str) -> None:
        now = time.time()
        line = f"[{now - self.start:4.0f} s, about {self._seconds_left(now):3.0f} s left] {text}"
        print(line, file=sys.stderr, flush=True)

    def _seconds_left(self, now: float) -> float:
        """What was expected, as much slower as this machine has been until now."""
        pace = (self.group_start - self.start) / self.done if self.done else 1.0
        return max(1.0, self.left * pace - (now - self.group_start))
