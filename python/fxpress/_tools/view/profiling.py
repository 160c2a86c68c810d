"""Run a program on the engine under torch's profiler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from fxpress._graphs.unflatten.modules import unflatten

_RUN = "a run of fxpress.view.data.times"


def events_of_runs(
    program: Any, args: Sequence[Any], kwargs: Mapping[str, Any], runs: int
) -> list[list[tuple[str, float]]]:
    """Return for each run the operators that it called, in order, and their microseconds.

    Operators that others call count in these.
    """
    module = unflatten(program)
    with torch.no_grad():
        module(*args, **kwargs)
        with profile(activities=[ProfilerActivity.CPU]) as profiled:
            for _ in range(runs):
                with record_function(_RUN):
                    module(*args, **kwargs)
    found = []
    for run in (event for event in profiled.events() if event.name == _RUN):
        called = [event for event in run.cpu_children if "::" in event.name]
        called.sort(key=lambda event: event.time_range.start)
        found.append([(each.name, each.time_range.elapsed_us()) for each in called])
    return found
