"""Measure the time from an interrupt to its KeyboardInterrupt."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable

ATTEMPTS = 5


def answer_time(
    work: Callable[[], object], after: float, clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return the least seconds, in several attempts, from a SIGINT to the KeyboardInterrupt in
    `work`. The SIGINT is sent `after` seconds into `work`. Other processes only add delays."""
    return min(one_answer(work, after, clock) for _ in range(ATTEMPTS))


def one_answer(work: Callable[[], object], after: float, clock: Callable[[], float]) -> float:
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(clock())
        signal.raise_signal(signal.SIGINT)

    # An interrupt during a callback of the garbage collector is lost; Hypothesis has a callback.
    timers = [threading.Timer(after + 2 * i, interrupt) for i in range(5)]
    # The worker processes of pytest-xdist may ignore SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    for timer in timers:
        timer.start()
    try:
        try:
            work()
        except KeyboardInterrupt:
            return clock() - sent[-1]
        return math.inf  # all of them were lost
    finally:
        for timer in timers:
            timer.cancel()
        signal.signal(signal.SIGINT, before)
