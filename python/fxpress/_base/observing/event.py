"""What is known of a call of an operation, or of a phase of one."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(eq=False)
class Event:
    """A call of an operation, or a phase of a call. torch has no such class.

    Attributes:
        name: the name of the operation, such as `"unflatten"`, or of the phase.
        is_operation: whether it is a call of an operation, and no phase.
        parent: the event during which it happened; None: it happened by itself.
        number: events have rising numbers, in the order in which they began.
        thread: the number of the thread, as of `threading.get_native_id`.
        thread_name: its name.
        start: when it began, seconds of `time.perf_counter`.
        wall: how long it took, seconds.
        processor: how long its thread was computing meanwhile, seconds. Native code may use more
            threads, which do not count here.
        processor_start: the thread's processor time when it began, seconds.
        sizes: what was worked on, such as `{"nodes": 1154, "modules": 38}`; empty for phases and
            for calls that raised.
        error: the class of the exception that ended it; None: it ended well.

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
        """The names of the operation and of the phases in it, such as `"save.weights"`."""
        parts = [self.name]
        event = self
        while not event.is_operation and event.parent is not None:
            event = event.parent
            parts.append(event.name)
        return ".".join(reversed(parts))
