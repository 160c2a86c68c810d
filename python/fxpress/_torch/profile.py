"""`fxpress.profile`: what operations did, and how long it took."""

from __future__ import annotations

import json
import os
import time
from operator import attrgetter
from types import TracebackType

from fxpress._base.observing.event import Event
from fxpress._base.observing.table import table_of
from fxpress._base.observing.trace import trace_of
from fxpress._torch.watching import watchers


class Profile:
    """The calls of operations within a `with` block, of all threads. torch has no such class.

    `profile` returns one. Its text is its table.

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
            raise RuntimeError("the profile has begun already")
        if not self._begin:
            self._begin = time.perf_counter()
        watchers.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        watchers.remove(self)

    def take(self, event: Event) -> None:
        """Add an event that has ended; operations call it."""
        self._taken.append(event)

    @property
    def events(self) -> list[Event]:
        """The calls and their phases, in the order in which they began, as `Event`."""
        return sorted(self._taken, key=attrgetter("number"))

    def table(self, *, each_call: bool = True) -> str:
        """Return a table: calls, their phases, wall and processor time, and what was worked on.

        Args:
            each_call: False: calls of one operation share a row.
        """
        return table_of(self.events, each_call=each_call)

    def __str__(self) -> str:
        return self.table()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a trace for chrome://tracing or https://ui.perfetto.dev.

        Args:
            path: the file, which is written anew.

        Raises:
            OSError: the file cannot be written.
        """
        with open(path, "w", encoding="utf-8") as file:
            json.dump(trace_of(self.events, self._begin), file)


def profile() -> Profile:
    """Return a block that notes how long operations in it take, phase by phase.

    torch has no such function. Calls of all threads that begin and end within the block are noted.
    While no profile runs, a call costs one test of a flag more. The blocks may be nested; a
    profile that is entered again goes on.

    Returns:
        A profile: `str(profile)` is a table, `profile.events` a list of `Event`, and
        `profile.save("trace.json")` writes a trace for Chrome or Perfetto.

    Raises:
        RuntimeError: a profile that runs is entered.

    Example:
        >>> with fxpress.profile() as profile:
        ...     fxpress.save(program, "model.pt2")
        >>> [event.name for event in profile.events if event.is_operation]
        ['save']
        >>> print(profile)  # doctest: +SKIP
        >>> profile.save("trace.json")
    """
    return Profile()
