"""Events in the format that Chrome and Perfetto show."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from fxpress._base.observing.event import Event


def trace_of(events: Sequence[Event], begin: float) -> dict[str, Any]:
    """Return a trace: a slice for each event, on the track of its thread.

    Args:
        begin: the time that the trace has as 0, seconds of `time.perf_counter`.
    """
    process = os.getpid()
    tracks = {event.thread: event.thread_name for event in events}
    named: list[dict[str, Any]] = [
        {"ph": "M", "name": "thread_name", "pid": process, "tid": thread, "args": {"name": name}}
        for thread, name in tracks.items()
    ]
    return {
        "displayTimeUnit": "ms",
        "traceEvents": named + [_slice(e, process, begin) for e in events],
    }


def _slice(event: Event, process: int, begin: float) -> dict[str, Any]:
    notes: dict[str, Any] = dict(event.sizes)
    if event.error is not None:
        notes["error"] = event.error
    return {
        "ph": "X",
        "name": f"fxpress.{event.name}" if event.is_operation else event.name,
        "cat": "operation" if event.is_operation else "phase",
        "pid": process,
        "tid": event.thread,
        "ts": (event.start - begin) * 1e6,
        "dur": event.wall * 1e6,
        "tts": event.processor_start * 1e6,
        "tdur": event.processor * 1e6,
        "args": notes,
    }
