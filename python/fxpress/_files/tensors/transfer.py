"""Copy byte tensors (uint8, one dimension) between devices, with few launches for many tensors.

Bytes are copied between the host and a device through pinned host buffers of bounded size. Several
small tensors share a buffer, so that one copy moves all of them. With many small tensors, a second
buffer, on the device, collects or distributes their bytes in one launch.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from fxpress._torch.aten import allocate_bytes
from fxpress._torch.fx import foreach_copy

_LARGE = 1 << 20  # bytes; tensors of this size or more are copied one by one
_PIECE = 1 << 25  # bytes of a buffer
_BUFFERS = 4  # host buffers; the host fills some buffers while others are copied
_STREAMS = 2  # one stream copies to the device while the other distributes copied bytes
_FEW = 32  # a host buffer with more tensors than this uses a second buffer on the device


def to_device(storages: Sequence[torch.Tensor], device: torch.device | None) -> list[torch.Tensor]:
    """Return copies of byte tensors on `device`; if it is None, on the devices of the originals."""
    made: dict[int, torch.Tensor] = {}
    for here in {source.device for source in storages}:
        positions = [i for i, source in enumerate(storages) if source.device == here]
        sources = [storages[i] for i in positions]
        targets, _ = allocate_bytes([source.numel() for source in sources], device or here)
        _copy(sources, targets)
        made.update(zip(positions, targets, strict=True))
    return [made[i] for i in range(len(storages))]


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy each source to the target at its position. All tensors of a list are on one device."""
    here, there = sources[0].device, targets[0].device
    if there.type == "meta":
        return
    if here.type == "meta":
        raise NotImplementedError("Cannot copy out of meta tensor; no data!")
    if here.type != "cpu" and there.type == "cpu":
        _to_host(sources, targets)
    elif here.type == "cpu" and there.type != "cpu":
        _from_host(sources, targets)
    else:
        _within(sources, targets)


def _within(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy within the host or a device, or between two devices, in the current streams."""
    small: list[tuple[torch.Tensor, torch.Tensor]] = []
    for source, target in zip(sources, targets, strict=True):
        if source.numel() >= _LARGE:
            target.copy_(source, non_blocking=True)
        elif source.numel() > 0:
            small.append((target, source))
    if small:
        foreach_copy([target for target, _ in small], [source for _, source in small])


def _from_host(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    pinned = [source.numel() >= _LARGE and source.is_pinned() for source in sources]
    others = [source for source, is_pinned in zip(sources, pinned, strict=True) if not is_pinned]

    def fill(parts: list[Part], buffer: torch.Tensor) -> None:
        torch.cat([part.of(others) for part in parts], out=buffer)

    try:
        for source, target, is_pinned in zip(sources, targets, pinned, strict=True):
            if is_pinned:
                target.copy_(source, non_blocking=True)
        upload(
            [target for target, is_pinned in zip(targets, pinned, strict=True) if not is_pinned],
            fill,
        )
    finally:
        if any(pinned):  # the copies must end before the caller frees the sources
            torch.accelerator.current_stream(targets[0].device).synchronize()


def _to_host(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for parts, buffer in download(sources):
        foreach_copy([part.of(targets) for part in parts], split(buffer, parts))


class Part(NamedTuple):
    """A range of bytes in one tensor of a list."""

    position: int  # the tensor's index in the list
    start: int  # in bytes
    size: int

    def of(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the bytes of `tensors[position]` from `start` to `start + size`."""
        tensor = tensors[self.position]
        if self.size == tensor.numel():
            return tensor
        return tensor[self.start : self.start + self.size]


def _parts(sizes: Sequence[int]) -> list[list[Part]]:
    """Return the parts in each buffer: several entire tensors, or one range of a large tensor."""
    result: list[list[Part]] = []
    space = 0
    for position, size in enumerate(sizes):
        if size > _PIECE:
            starts = range(0, size, _PIECE)
            result += [[Part(position, start, min(_PIECE, size - start))] for start in starts]
            space = 0
        elif size:
            if size > space:
                result.append([])
                space = _PIECE
            result[-1].append(Part(position, 0, size))
            space -= size
    return result


def split(buffer: torch.Tensor, parts: list[Part]) -> tuple[torch.Tensor, ...]:
    """Return each part's bytes in a buffer that contains the parts in order."""
    return tuple(buffer.split_with_sizes([part.size for part in parts]))


def addresses(buffer: torch.Tensor, parts: list[Part]) -> list[int]:
    """Return the address of each part's bytes in a buffer that contains the parts in order."""
    ends = itertools.accumulate((part.size for part in parts), initial=buffer.data_ptr())
    return list(ends)[:-1]


class _Ring:
    """Host buffers, which batches of parts use in turn, and the streams that copy the batches."""

    def __init__(self, device: torch.device, batches: list[list[Part]], streams: int) -> None:
        self.sizes = [sum(part.size for part in parts) for parts in batches]
        count = min(_BUFFERS, len(batches))
        largest = max(self.sizes)
        self._buffers = [
            # The explicit device overrides the default device of torch.
            torch.empty(largest, dtype=torch.uint8, pin_memory=True, device="cpu")
            for _ in range(count)
        ]
        self._events: list[Any] = [None] * count
        self._streams = [torch.Stream(device) for _ in range(min(streams, count))]
        # The caller's stream allocates the memory, so the allocator reuses it on that stream only.
        self._staging = [
            torch.empty(largest, dtype=torch.uint8, device=device)
            for _ in self._streams
            if max(map(len, batches)) > _FEW
        ]
        current = torch.accelerator.current_stream(device)
        for stream in self._streams:
            stream.wait_stream(current)

    def __len__(self) -> int:
        return len(self._buffers)

    def buffer(self, number: int) -> torch.Tensor:
        """Return the host buffer of a batch, after earlier copies from or to it have ended."""
        event = self._events[number % len(self)]
        if event is not None:
            event.synchronize()
        return self._buffers[number % len(self)][: self.sizes[number]]

    def start(self, number: int, copy: Callable[[], None]) -> None:
        """Run `copy` on the stream of a batch."""
        stream = self._streams[number % len(self._streams)]
        with stream:
            copy()
            self._events[number % len(self)] = stream.record_event()

    def staging(self, number: int) -> torch.Tensor:
        """Return the buffer on the device that a batch with more than `_FEW` parts uses."""
        return self._staging[number % len(self._staging)][: self.sizes[number]]

    def finish(self) -> None:
        """Wait for all copies, so that the caller may free buffers and tensors."""
        for stream in self._streams:
            stream.synchronize()


def upload(
    targets: Sequence[torch.Tensor], fill: Callable[[list[Part], torch.Tensor], None]
) -> None:
    """Fill byte tensors on one device. `fill(parts, buffer)` writes the parts to a host buffer."""
    batches = _parts([target.numel() for target in targets])
    if not batches:
        return
    ring = _Ring(targets[0].device, batches, _STREAMS)

    def hand_out(number: int, buffer: torch.Tensor) -> None:
        places = [part.of(targets) for part in batches[number]]
        if len(places) > _FEW:
            there = ring.staging(number)
            there.copy_(buffer, non_blocking=True)
            foreach_copy(places, split(there, batches[number]))
            return
        for place, data in zip(places, split(buffer, batches[number]), strict=True):
            place.copy_(data, non_blocking=True)

    try:
        for number, parts in enumerate(batches):
            buffer = ring.buffer(number)
            fill(parts, buffer)
            ring.start(number, functools.partial(hand_out, number, buffer))
    finally:
        ring.finish()


def download(sources: Sequence[torch.Tensor]) -> Iterator[tuple[list[Part], torch.Tensor]]:
    """Yield (parts, host buffer with their bytes); the buffer is valid until the next iteration."""
    batches = _parts([source.numel() for source in sources])
    if not batches:
        return
    ring = _Ring(sources[0].device, batches, 1)

    def collect(number: int, buffer: torch.Tensor) -> None:
        data = [part.of(sources) for part in batches[number]]
        if len(data) > _FEW:
            there = ring.staging(number)
            torch.cat(data, out=there)
            buffer.copy_(there, non_blocking=True)
            return
        for place, bytes_of_it in zip(split(buffer, batches[number]), data, strict=True):
            place.copy_(bytes_of_it, non_blocking=True)

    def start(number: int) -> None:
        if number < len(batches):
            ring.start(number, functools.partial(collect, number, ring.buffer(number)))

    try:
        for number in range(len(ring) - 1):
            start(number)
        for number, parts in enumerate(batches):
            start(number + len(ring) - 1)  # into the buffer that was yielded last
            yield parts, ring.buffer(number)
    finally:
        ring.finish()
