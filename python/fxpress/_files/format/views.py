"""Read the elements of a tensor from the bytes of its storage, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

from fxpress import _native

# Itemsize -> format of a memoryview.
_FORMATS: dict[int, Literal["B", "H", "I", "Q"]] = {1: "B", 2: "H", 4: "I", 8: "Q"}


class View:
    """The positions of a tensor's elements in its storage.

    `sizes`, `strides` and `start` are in elements; ValueError if they are invalid. `bytes` is the
    smallest size of a storage that contains all elements.
    """

    def __init__(
        self, itemsize: int, sizes: Sequence[int], strides: Sequence[int], start: int
    ) -> None:
        if len(sizes) != len(strides):
            raise ValueError(f"expected {len(sizes)} strides, as many as sizes, got {len(strides)}")
        needed = _native.bytes_needed(sizes, strides, start, itemsize)
        if needed is None:
            raise ValueError("a size, stride or offset is negative, or needs 2**64 bytes or more")
        self.bytes = needed
        self._start = start
        self._is_empty = 0 in sizes
        self._dimensions = [d for d in zip(sizes, strides, strict=True) if d[0] != 1]
        self._itemsize = itemsize
        if itemsize not in _FORMATS:  # complex128 is read as pairs of 8 bytes
            self._itemsize = itemsize // 2
            self._start = 2 * start
            self._dimensions = [(size, 2 * stride) for size, stride in self._dimensions] + [(2, 1)]
        self._merge()

    def _merge(self) -> None:
        """Merge adjacent dimensions whose elements are contiguous."""
        merged: list[tuple[int, int]] = []
        for size, stride in reversed(self._dimensions):
            if merged and stride == merged[-1][0] * merged[-1][1]:
                merged[-1] = (size * merged[-1][0], merged[-1][1])
            else:
                merged.append((size, stride))
        self._dimensions = merged[::-1]

    def parts(self, data: bytes) -> Iterator[bytes]:
        """Yield the elements' bytes in order; ValueError if the storage `data` is too short."""
        if self.bytes > len(data):
            raise ValueError(f"expected a storage of {self.bytes} bytes, found {len(data)}")
        if self._is_empty:
            return
        used = len(data) // self._itemsize * self._itemsize
        items = memoryview(data)[:used].cast(_FORMATS[self._itemsize])
        *outer, (size, stride) = self._dimensions or [(1, 1)]
        for first in _starts(self._start, outer):
            if stride:
                yield items[first : first + (size - 1) * stride + 1 : stride].tobytes()
            else:
                yield items[first : first + 1].tobytes() * size


def _starts(start: int, dimensions: list[tuple[int, int]]) -> Iterator[int]:
    """Yield the offset of the first element of each row of the innermost dimension."""
    if not dimensions:
        yield start
        return
    (size, stride), *inner = dimensions
    for number in range(size):
        yield from _starts(start + number * stride, inner)
