"""Implement `fxpress.profile`: record the calls of fxpress's operations, and their durations."""

from __future__ import annotations

import dataclasses
import json
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from fxpress._base.observing.event import Event
from fxpress._base.observing.text import counted_text, duration_text, html_table, sizes_text
from fxpress._files.archive.files import write_file
from fxpress._torch.watching import watchers


def trace_of(events: Sequence[Event], begin: float) -> dict[str, Any]:
    """Return a trace with a slice for each event; time 0 is `begin`, a value of `perf_counter`."""
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


_TITLES = ("", "calls", "wall", "processor", "")


@dataclasses.dataclass
class _Row:
    """A row of a profile's table: the events of one name below one parent row."""

    name: str
    depth: int
    events: list[Event] = dataclasses.field(default_factory=list)
    below: dict[tuple[str, int], _Row] = dataclasses.field(default_factory=dict)

    def cells(self) -> tuple[str, ...]:
        errors = {event.error for event in self.events if event.error is not None}
        sizes = Counter[str]()
        for event in self.events:
            sizes.update(event.sizes)
        return (
            "  " * self.depth + self.name,
            f"{len(self.events):,}",
            duration_text(sum(event.wall for event in self.events)),
            duration_text(sum(event.processor for event in self.events)),
            "  ".join([sizes_text(sizes), *sorted(errors)]).strip(),
        )


def table_of(events: Sequence[Event], *, each_call: bool) -> str:
    """Return a table of operations; with `each_call`, each outermost call has a separate row."""
    lines = [_TITLES, *_cells(events, each_call)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {calls:>{widths[1]}}  {wall:>{widths[2]}}"
        f"  {processor:>{widths[3]}}  {note}".rstrip()
        for name, calls, wall, processor, note in lines
    )


def _cells(events: Sequence[Event], each_call: bool) -> list[tuple[str, ...]]:
    """Return the rows of a table of events."""
    threads = {event.thread: event.thread_name for event in events}
    lines: list[tuple[str, ...]] = []
    for thread, name in threads.items():
        if len(threads) > 1:
            lines.append((f"thread {name}", "", "", "", ""))
        of_thread = [event for event in events if event.thread == thread]
        lines += (row.cells() for row in _walk(_rows(of_thread, each_call)))
    return lines


def _rows(events: Sequence[Event], each_call: bool) -> dict[tuple[str, int], _Row]:
    """Return the outermost rows of a table; the field `below` of a row has its child rows."""
    top: dict[tuple[str, int], _Row] = {}
    row_of: dict[int, _Row] = {}  # number of an event -> its row
    for event in events:
        above = None if event.parent is None else row_of.get(event.parent.number)
        siblings = top if above is None else above.below
        key = (event.name, event.number if above is None and each_call else -1)
        if key not in siblings:
            siblings[key] = _Row(event.name, 0 if above is None else above.depth + 1)
        siblings[key].events.append(event)
        row_of[event.number] = siblings[key]
    return top


def _walk(rows: dict[tuple[str, int], _Row]) -> Iterable[_Row]:
    waiting = [*rows.values()][::-1]
    while waiting:
        row = waiting.pop()
        yield row
        waiting += [*row.below.values()][::-1]


class Profile:
    """The calls of operations in all threads within a `with` block. torch has no such class.

    `profile` returns a `Profile`; `str` of a profile is its table.

    Example:
        >>> with fxpress.profile() as profile:
        ...     fxpress.save(program, "model.pt2")
        >>> [event.name for event in profile.events if event.is_operation]
        ['save']
        >>> profile.save("trace.json")
    """

    def __init__(self) -> None:
        self._taken: list[Event] = []
        self._begin = 0.0

    def __enter__(self) -> Profile:
        if self in watchers:
            raise RuntimeError("the profile is already active")
        if not self._begin:
            self._begin = time.perf_counter()
        watchers.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        watchers.remove(self)

    def take(self, event: Event) -> None:
        """Add an event that has ended. fxpress's operations call this; users do not."""
        self._taken.append(event)

    @property
    def events(self) -> list[Event]:
        """The calls of operations and the phases of the calls, in the order in which they began."""
        return sorted(self._taken, key=attrgetter("number"))

    def table(self, *, each_call: bool = True) -> str:
        """Return a table of calls and their phases, with wall and processor time, and sizes.

        Args:
            each_call: if False, calls of one operation share a row.
        """
        return table_of(self.events, each_call=each_call)

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        is_operation = [event.is_operation for event in self._taken]
        counts = (is_operation.count(True), "call"), (is_operation.count(False), "phase")
        return f"<Profile: {', '.join(counted_text(*each) for each in counts)}>"

    def _repr_html_(self) -> str:
        head = [f"#{each}" if each else "" for each in _TITLES]
        return html_table(repr(self), head, _cells(self.events, True))

    def save(self, path: str | bytes | os.PathLike[str]) -> None:
        """Write a trace for chrome://tracing or https://ui.perfetto.dev.

        Args:
            path: the file, which is replaced when the new one is complete.

        Raises:
            OSError: the file cannot be written.
        """
        write_file(path, json.dumps(trace_of(self.events, self._begin)))


def profile() -> Profile:
    """Return a context manager that records the duration of operations, phase by phase.

    torch has no such function. In all threads, the profile records calls of fxpress's operations
    that begin and end within the block. Without a profile, an operation only tests three flags.
    Blocks of several profiles may be nested. A profile that is entered again adds to its events.

    Returns:
        A profile: `str(profile)` is a table, `profile.events` a list of `Event`, and
        `profile.save("trace.json")` writes a trace for Chrome or Perfetto.

    Raises:
        RuntimeError: a running profile is entered.

    Example:
        >>> with fxpress.profile() as profile:
        ...     fxpress.save(program, "model.pt2")
        >>> [event.name for event in profile.events if event.is_operation]
        ['save']
        >>> print(profile)  # doctest: +SKIP
        >>> profile.save("trace.json")
    """
    return Profile()
