"""How long an interrupt waits for its answer."""

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
    """Seconds from a SIGINT, sent `after` seconds into `work`, to the KeyboardInterrupt: the best
    of several attempts, since what else the machine does can only make an answer later."""
    return min(one_answer(work, after, clock) for _ in range(ATTEMPTS))


def one_answer(work: Callable[[], object], after: float, clock: Callable[[], float]) -> float:
    sent: list[float] = []

    def interrupt() -> None:
        sent.append(clock())
        signal.raise_signal(signal.SIGINT)

    # One that comes while a callback of the garbage collector runs (Hypothesis has one) is lost.
    timers = [threading.Timer(after + 2 * i, interrupt) for i in range(5)]
    # Processes that tests are spread over may ignore it.
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
