"""Run a program in which a rank is killed at a place, once: killed_once.py PROGRAM RANK PLACE N.

A place is "step" (the Nth step), "write" (the files of the Nth checkpoint are written, but not in
their places) or "finish" (as write, on the rank that completes the checkpoint: before its index).
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fxpress import checkpoint, pipeline
from fxpress._distributed.checkpoint import writer

MARK = Path("killed")


def dying(function: Callable[..., Any], last: int, *, after: bool) -> Callable[..., Any]:
    """Return the function, which kills this process in its call of a number, from 1."""
    count = 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        count += 1
        dies = count == last and not MARK.exists()
        if not dies or after:
            made = function(*args, **kwargs)
        if dies:
            MARK.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    return call


def prepare(place: str, last: int) -> None:
    """Let this process die."""
    if place == "step":
        build = pipeline.build_schedule

        def built(*args: Any, **kwargs: Any) -> Any:
            schedule = build(*args, **kwargs)
            schedule.step = dying(schedule.step, last, after=False)
            return schedule

        pipeline.build_schedule = built
    elif place == "write":
        kind = checkpoint.ArchiveWriter
        kind.write_data = dying(kind.write_data, last, after=True)  # type: ignore[method-assign]
    else:
        writer.complete = dying(writer.complete, last, after=False)


if __name__ == "__main__":
    program, rank, place, last = sys.argv[1:]
    if os.environ["RANK"] == rank:
        prepare(place, int(last))
    runpy.run_path(program, run_name="__main__")
