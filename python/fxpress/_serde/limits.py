"""The limits on the cost of reading a file, and the budget that carries them through a load."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from fxpress import _native
from fxpress._torch.serde import SerializeError

_MEGABYTE = 1 << 20
_MOST_BYTES = 1 << 62


class LimitError(SerializeError):
    """Reading a file would cost more than the limits allow, see `fxpress.archive.Limits`.

    Attributes:
        limit: the name of the field of `Limits`.
        place: where in the file it was reached.
    """

    __module__ = "fxpress"

    def __init__(self, limit: str, place: str) -> None:
        super().__init__(limit, place)
        self.limit = limit
        self.place = place

    def __str__(self) -> str:
        return (
            f"{self.place}: more than the limit {self.limit!r} allows; if you trust the file, "
            f"give a larger one: limits=fxpress.archive.Limits({self.limit}=...)"
        )


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits on the cost of reading a file, so that no file costs much more than its size says.

    Real programs stay far below the defaults. A file that goes over one raises `LimitError`.

    Attributes:
        memory: bytes that a load may take whatever the size of the file: unpacked records, zeros
            that are not stored, and the objects that are made, which are estimated.
        memory_per_byte: the same, for each byte of the file.
        elements: items of a tree of example inputs or of a tree spec, each counted as often as
            it is reached; what was saved once and is shared counts every time.
        depth: values, graphs, trees or brackets within each other. Threads with a small stack
            allow for less.
        digits: decimal digits of a number in a symbolic expression.
        terms: numbers, symbols and functions in one symbolic expression.
        seconds: processor time of this thread for symbolic expressions, whatever the size of the
            file.
        seconds_per_megabyte: the same, for each megabyte (2**20 bytes) of the file.
    """

    memory: int = 192 << 20
    memory_per_byte: float = 7.0
    elements: int = 1 << 20
    depth: int = 500
    digits: int = 40
    terms: int = 2048
    seconds: float = 1.5
    seconds_per_megabyte: float = 8.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not value >= 0:
                raise ValueError(f"{name} is a number that is not negative, not {value!r}")


DEFAULT = Limits()


class SymbolicWork:
    """Counts the processor time of this thread in its blocks, which may be within each other.

    Attributes:
        done: seconds in the blocks that are closed.
    """

    __slots__ = ("_open", "_since", "done")

    def __init__(self) -> None:
        self.done = 0.0
        self._open = 0  # blocks
        self._since = 0.0  # when the outermost was opened

    def __enter__(self) -> None:
        if self._open == 0:
            self._since = time.thread_time()
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if self._open == 0:
            self.done += time.thread_time() - self._since

    def seconds(self) -> float:
        """All of it, until now."""
        return self.done + (time.thread_time() - self._since if self._open else 0.0)


class Budget:
    """The part of the limits that is left for one file. Only one thread at a time may use it.

    Args:
        limits: None: the defaults.
        size: of the file, bytes.

    Raises:
        TypeError: `limits` is something else.

    Attributes:
        native: what the native code charges.
        symbolic: a block for symbolic work, whose time is counted.
    """

    def __init__(self, limits: Limits | None, size: int) -> None:
        if not isinstance(limits, Limits | None):
            raise TypeError(f"limits is a fxpress.archive.Limits, not a {type(limits).__name__}")
        self.limits = DEFAULT if limits is None else limits
        self.native = _native.Budget(_as_bytes(self.limits.memory), int(self.limits.depth))
        self._seconds = float(self.limits.seconds)
        self.symbolic = SymbolicWork()
        self.grow(size)

    def grow(self, size: int) -> None:
        """There is a file of so many bytes more."""
        self.native.grow(_as_bytes(self.limits.memory_per_byte * size))
        self._seconds += self.limits.seconds_per_megabyte * size / _MEGABYTE

    def charge(self, size: int, place: str) -> None:
        """So many bytes are about to be allocated for something; LimitError if that is too much."""
        self.native.set_place(place)
        self.native.charge(_as_bytes(size))
        self.native.set_place("the program")

    def check_json(self, text: str | bytes, place: str) -> None:
        """LimitError for JSON text that is nested too deeply to be read, or too large."""
        if _native.is_nested_deeper(text, self.limits.depth):
            raise LimitError("depth", place)
        self.charge(_JSON_RATIO * len(text), place)

    def check_time(self, place: str) -> None:
        """LimitError when symbolic work has taken too long."""
        if self.symbolic.seconds() > self._seconds:
            raise LimitError("seconds", place)

    def check_time_before(self, place: str) -> None:
        """The same without the block that is open: asks for no time, which every tensor would."""
        if self.symbolic.done > self._seconds:
            raise LimitError("seconds", place)


def _as_bytes(size: float) -> int:
    return int(min(max(size, 0), _MOST_BYTES))


_JSON_RATIO = 24  # bytes of Python's objects for each byte of JSON text


def sizes_of(*parts: Any) -> int:
    """The bytes of those parts of a file that are bytes."""
    return sum(len(part) for part in parts if isinstance(part, (bytes, bytearray, memoryview)))
