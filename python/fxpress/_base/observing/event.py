"""Define the events that fxpress reports: calls of operations, and phases of these calls."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(eq=False)
class Event:
    """A call of an operation, or a phase of a call. torch has no such class.

    Attributes:
        name: the name of the operation, such as `"unflatten"`, or of the phase.
        is_operation: True for the call of an operation, False for a phase.
        parent: the event that was in progress when this event began, or None.
        number: increases in the order in which events began.
        thread: the id of the thread, from `threading.get_native_id`.
        thread_name: the name of the thread.
        start: the start time, in seconds of `time.perf_counter`.
        wall: the duration in seconds.
        processor: the processor time that the thread used during the event, in seconds. It does not
            include threads that native code starts.
        processor_start: the processor time of the thread when the event began, in seconds.
        sizes: sizes of the input or result, such as `{"nodes": 1154, "modules": 38}`; empty for
            phases and for calls that raised.
        error: the class name of the exception that ended the event, or None.

    Example:
        >>> with fxpress.profile() as profile:
        ...     text = fxpress.graph_hash(program)
        >>> operation, *phases = profile.events
        >>> operation.name, operation.parent, operation.error
        ('graph_hash', None, None)
        >>> all(phase.wall <= operation.wall for phase in phases)
        True
    """

    name: str
    is_operation: bool
    parent: Event | None
    number: int
    thread: int
    thread_name: str
    start: float
    processor_start: float
    wall: float = 0.0
    processor: float = 0.0
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    error: str | None = None

    @property
    def path(self) -> str:
        """Return the names from the operation down to this event, such as `"save.weights"`."""
        parts = [self.name]
        event = self
        while not event.is_operation and event.parent is not None:
            event = event.parent
            parts.append(event.name)
        return ".".join(reversed(parts))
