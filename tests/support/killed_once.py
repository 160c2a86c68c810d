"""Run a program, and kill its process of one rank once: killed_once.py PROGRAM RANK PLACE N.

PLACE is "step" (before the Nth step), "write" (after the rank has written the files of the Nth
checkpoint under temporary names) or "finish" (before the coordinator, RANK, renames these files).
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
    """Wrap a function: its call number `last` kills this process, before or after the real call."""
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
    """Patch the function at a place, so that it kills this process."""
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
