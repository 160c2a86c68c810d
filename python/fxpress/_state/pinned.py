"""Bytes between the host and a device, through pinned buffers of bounded size.

Tensors of bytes are of dtype uint8 and have one dimension. Many small ones go together: one copy
across, and few launches on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fxpress._torch_compat import foreach_copy

_PIECE = 1 << 25  # bytes of a buffer
_BUFFERS = 4  # that are filled while others are copied
_STREAMS = 2  # one copies while the other one hands out what it has copied
_FEW = 32  # tensors in a buffer that get a copy each


class Part(NamedTuple):
    """Some bytes of one of several tensors."""

    position: int  # of the tensor
    start: int  # bytes
    size: int

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """The bytes themselves."""
        tensor = tensors[self.position]
        if self.size == tensor.numel():
            return tensor
        return tensor[self.start : self.start + self.size]


def _parts(sizes: Sequence[int]) -> list[list[Part]]:
    """What is in a buffer at a time, in order: tensors as a whole, or a piece of a large one."""
    result: list[list[Part]] = []
    room = 0
    for position, size in enumerate(sizes):
        if size > _PIECE:
            starts = range(0, size, _PIECE)
            result += [[Part(position, start, min(_PIECE, size - start))] for start in starts]
            room = 0
        elif size:
            if size > room:
                result.append([])
                room = _PIECE
            result[-1].append(Part(position, 0, size))
            room -= size
    return result


def split(buffer: torch.Tensor, parts: list[Part]) -> tuple[torch.Tensor, ...]:
    """The bytes of each part in a buffer."""
    return tuple(buffer.split_with_sizes([part.size for part in parts]))


class _Ring:
    """Buffers that are used in turn, and streams that copy after what the caller's stream does."""

    def __init__(self, device: torch.device, batches: list[list[Part]], streams: int) -> None:
        self.sizes = [sum(part.size for part in parts) for parts in batches]
        count = min(_BUFFERS, len(batches))
        largest = max(self.sizes)
        self._buffers = [
            torch.empty(largest, dtype=torch.uint8, pin_memory=True) for _ in range(count)
        ]
        self._events: list[Any] = [None] * count
        self._streams = [torch.Stream(device) for _ in range(min(streams, count))]
        current = torch.accelerator.current_stream(device)
        for stream in self._streams:
            stream.wait_stream(current)

    def __len__(self) -> int:
        return len(self._buffers)

    def buffer(self, number: int) -> torch.Tensor:
        """The buffer of a batch, when the copies that were started on it are done."""
        event = self._events[number % len(self)]
        if event is not None:
            event.synchronize()
        return self._buffers[number % len(self)][: self.sizes[number]]

    def start(self, number: int, copy: Callable[[], None]) -> None:
        """Starts copies on a stream of the batch."""
        stream = self._streams[number % len(self._streams)]
        with stream:
            copy()
            self._events[number % len(self)] = stream.record_event()

    def finish(self) -> None:
        """Waits for all copies: buffers and tensors may be freed."""
        for stream in self._streams:
            stream.synchronize()


def upload(
    targets: Sequence[torch.Tensor], fill: Callable[[list[Part], torch.Tensor], None]
) -> None:
    """Fills tensors of bytes on one device.

    Args:
        targets: the tensors.
        fill: writes the bytes of some parts, one behind the other, into a buffer.
    """
    batches = _parts([target.numel() for target in targets])
    if not batches:
        return
    ring = _Ring(targets[0].device, batches, _STREAMS)
    try:
        for number, parts in enumerate(batches):
            buffer = ring.buffer(number)
            fill(parts, buffer)
            ring.start(number, lambda b=buffer, p=parts: _hand_out(b, targets, p))  # type: ignore[misc]
    finally:
        ring.finish()


def _hand_out(buffer: torch.Tensor, targets: Sequence[torch.Tensor], parts: list[Part]) -> None:
    """A buffer to its parts on the device, in the current stream."""
    if len(parts) > _FEW:
        there = torch.empty(buffer.numel(), dtype=torch.uint8, device=targets[0].device)
        there.copy_(buffer, non_blocking=True)
        foreach_copy([part.of(targets) for part in parts], split(there, parts))
        return
    for part, data in zip(parts, split(buffer, parts), strict=True):
        part.of(targets).copy_(data, non_blocking=True)


def download(sources: Sequence[torch.Tensor]) -> Iterator[tuple[list[Part], torch.Tensor]]:
    """The bytes of tensors on one device, in order.

    Yields:
        Parts, and their bytes in host memory, one behind the other; they are there until the next
        ones are asked for. The device fills other buffers meanwhile.
    """
    batches = _parts([source.numel() for source in sources])
    if not batches:
        return
    ring = _Ring(sources[0].device, batches, 1)

    def start(number: int) -> None:
        if number < len(batches):
            buffer = ring.buffer(number)
            ring.start(number, lambda: _collect(sources, batches[number], buffer))

    try:
        for number in range(len(ring) - 1):
            start(number)
        for number, parts in enumerate(batches):
            start(number + len(ring) - 1)  # into the buffer that was given last
            yield parts, ring.buffer(number)
    finally:
        ring.finish()


def _collect(sources: Sequence[torch.Tensor], parts: list[Part], buffer: torch.Tensor) -> None:
    """The bytes of parts on the device to a buffer, in the current stream."""
    if len(parts) > _FEW:
        there = torch.empty(buffer.numel(), dtype=torch.uint8, device=sources[0].device)
        torch.cat([part.of(sources) for part in parts], out=there)
        buffer.copy_(there, non_blocking=True)
        return
    for part, place in zip(parts, split(buffer, parts), strict=True):
        place.copy_(part.of(sources), non_blocking=True)
