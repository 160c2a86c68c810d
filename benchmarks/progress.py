"""Report on the error stream which group is measured, and the expected time."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Progress:
    """The progress of a run, which is passed to the process that measures.

    Attributes:
        start: seconds since the epoch when the run began.
        done: expected seconds of the groups that have been measured.
        left: expected seconds of the other groups, including the current one.
        group_start: seconds since the epoch when the current group began.
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
        """Return the expected seconds, scaled by the speed of this machine until now."""
        pace = (self.group_start - self.start) / self.done if self.done else 1.0
        return max(1.0, self.left * pace - (now - self.group_start))
