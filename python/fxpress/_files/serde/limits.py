"""Define `Budget`, the memory and time that a load may still use within its `Limits`."""

from __future__ import annotations

import time
from typing import Any

from fxpress import _native
from fxpress._files.format.fields import load_json, objects_of
from fxpress._files.format.limit_values import DEFAULT
from fxpress._files.format.limit_values import Limits as Limits
from fxpress._torch.serde import SerializeError

_MEGABYTE = 1 << 20
_MOST_BYTES = 1 << 62


class LimitError(SerializeError):
    """Reading a file would exceed its `fxpress.archive.Limits`.

    torch does not have this class.

    Attributes:
        limit: the name of the field of `Limits`.
        place: the location in the file at which the limit was reached.

    Example:
        >>> from fxpress import archive
        >>> fxpress.save(program, "model.pt2")
        >>> try:
        ...     fxpress.load("model.pt2", limits=archive.Limits(depth=2))
        ... except fxpress.LimitError as error:
        ...     print(error.limit)
        depth
    """

    __module__ = "fxpress"

    def __init__(self, limit: str, place: str) -> None:
        super().__init__(limit, place)
        self.limit, self.place = self.args

    def __str__(self) -> str:
        return (
            f"{self.place}: the file exceeds the limit {self.limit!r}; if you trust the file, "
            f"pass a larger limit: limits=fxpress.archive.Limits({self.limit}=...)"
        )


class SymbolicWork:
    """Measure processor seconds of this thread in `with` blocks, which may be nested."""

    __slots__ = ("_open", "_since", "done")

    def __init__(self) -> None:
        self.done = 0.0  # seconds in closed blocks
        self._open = 0  # the number of open blocks
        self._since = 0.0  # the time at which the outermost block was opened

    def __enter__(self) -> None:
        if self._open == 0:
            self._since = time.thread_time()
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1
        if self._open == 0:
            self.done += time.thread_time() - self._since

    def seconds(self) -> float:
        """Return the processor seconds in all blocks until now, including open blocks."""
        return self.done + (time.thread_time() - self._since if self._open else 0.0)


class Budget:
    """The remaining memory and time for a file of `size` bytes; not safe for concurrent threads.

    `native` counts memory and depth. `symbolic` measures the time of `with budget.symbolic:`.
    """

    def __init__(self, limits: Limits | None, size: int) -> None:
        if not isinstance(limits, Limits | None):
            raise TypeError(
                f"expected `limits` to be a fxpress.archive.Limits, got a {type(limits).__name__}"
            )
        self.limits = DEFAULT if limits is None else limits
        self.native = _native.Budget(_as_bytes(self.limits.memory), int(self.limits.depth))
        self._seconds = float(self.limits.seconds)
        self.symbolic = SymbolicWork()
        self.grow(size)

    @classmethod
    def of(cls, limits: Limits | Budget | None, size: int) -> Budget:
        """Grow and return `limits` if it is a shared Budget; otherwise return a new Budget."""
        if not isinstance(limits, Budget):
            return cls(limits, size)
        limits.grow(size)
        return limits

    def grow(self, size: int) -> None:
        """Add the memory and time that `size` bytes of a file allow."""
        self.native.grow(_as_bytes(self.limits.memory_per_byte * size))
        self._seconds += self.limits.seconds_per_megabyte * size / _MEGABYTE

    def charge(self, size: int, place: str) -> None:
        """Charge `size` bytes before they are allocated; LimitError if fewer are left."""
        self.native.set_place(place)
        self.native.charge(_as_bytes(size))
        self.native.set_place("the program")

    def check_json(self, text: str | bytes, place: str) -> None:
        """Raise LimitError for JSON text that is nested too deeply or needs too much memory."""
        if _native.is_nested_deeper(text, self.limits.depth):
            raise LimitError("depth", place)
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        self.charge(objects_of(data, 0), place)

    def load_json(self, text: str | bytes, place: str, **options: Any) -> Any:
        """Parse JSON text; ValueError if it is damaged, LimitError as in `check_json`."""
        self.check_json(text, place)
        return load_json(text, self.limits.depth, **options)

    def check_time(self, place: str) -> None:
        """Raise LimitError if `with budget.symbolic` blocks, including open ones, took too long."""
        if self.symbolic.seconds() > self._seconds:
            raise LimitError("seconds", place)

    def check_time_before(self, place: str) -> None:
        """Do the check of `check_time` for closed blocks only, without reading the clock."""
        if self.symbolic.done > self._seconds:
            raise LimitError("seconds", place)


def _as_bytes(size: float) -> int:
    return int(min(max(size, 0), _MOST_BYTES))


def sizes_of(*parts: Any) -> int:
    """Return the total size of the bytes-like parts; other parts count as 0."""
    return sum(len(part) for part in parts if isinstance(part, (bytes, bytearray, memoryview)))
