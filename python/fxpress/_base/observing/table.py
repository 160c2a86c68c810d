"""Events as a table of text."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Sequence

from fxpress._base.observing.event import Event
from fxpress._base.observing.text import duration_text, sizes_text

_TITLES = ("", "calls", "wall", "processor", "")


@dataclasses.dataclass
class _Row:
    """Events of one name that happened during the same events, or during events of one row."""

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
    """Return a table: a row for each call of an operation, its phases and calls below it.

    Args:
        events: in the order in which they began.
        each_call: whether calls that were made by themselves have rows of their own. Phases and
            calls within a call share a row by name.
    """
    threads = {event.thread: event.thread_name for event in events}
    lines: list[tuple[str, ...]] = [_TITLES]
    for thread, name in threads.items():
        if len(threads) > 1:
            lines.append((f"thread {name}", "", "", "", ""))
        of_thread = [event for event in events if event.thread == thread]
        lines += (row.cells() for row in _walk(_rows(of_thread, each_call)))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}  {calls:>{widths[1]}}  {wall:>{widths[2]}}"
        f"  {processor:>{widths[3]}}  {note}".rstrip()
        for name, calls, wall, processor, note in lines
    )


def _rows(events: Sequence[Event], each_call: bool) -> dict[tuple[str, int], _Row]:
    """Return the uppermost rows. Events whose parents are not among the events are uppermost."""
    top: dict[tuple[str, int], _Row] = {}
    row_of: dict[int, _Row] = {}  # by the number of the event
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
