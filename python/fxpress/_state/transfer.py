"""Bytes from one device to another, in few steps however many tensors there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fxpress._torch_compat import foreach_copy

_PIECE = 1 << 25  # bytes of a pinned buffer; there are two
_SMALL = 1 << 20  # bytes: what goes together with others


def bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    """A storage as a tensor of bytes: uint8, one dimension."""
    empty = torch.empty(0, dtype=torch.uint8, device=storage.device)
    return empty.set_(storage, 0, (storage.nbytes(),), (1,))


def to_device(storages: list[torch.Tensor], device: torch.device | None) -> list[torch.Tensor]:
    """Copies of tensors of bytes (uint8, one dimension) on a device; None: where each is."""
    made = [torch.empty_like(each, device=device or each.device) for each in storages]
    across: list[tuple[torch.Tensor, torch.Tensor]] = []  # between devices, or on one
    small: list[tuple[torch.Tensor, torch.Tensor]] = []
    for source, target in zip(storages, made, strict=True):
        if "meta" in (source.device.type, target.device.type) or source.numel() == 0:
            continue
        if target.device.type == "cpu":
            _to_host(source, target)
        elif source.device.type != "cpu":
            across.append((target, source))
        elif source.numel() < _SMALL:
            small.append((target, source))
        else:
            _from_host(source, target)
    _copy_many(across)
    _small_from_host(small)
    return made


def _copy_many(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copies (target, source) on devices in few launches."""
    if pairs:
        foreach_copy([target for target, _ in pairs], [source for _, source in pairs])


def _small_from_host(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """(target, source): put together in one buffer of bounded size after the other."""
    start = 0
    while start < len(pairs):
        end, size = start, 0
        while end < len(pairs) and size + pairs[end][1].numel() <= _PIECE:
            size += pairs[end][1].numel()
            end += 1
        batch = pairs[start:end]
        start = end
        pinned = torch.cat([source for _, source in batch]).pin_memory()
        there = pinned.to(batch[0][0].device, non_blocking=True)
        parts = there.split([source.numel() for _, source in batch])
        _copy_many([(target, part) for (target, _), part in zip(batch, parts, strict=True)])
        # The buffer may be freed when the copy has been made.
        torch.accelerator.current_stream(there.device).synchronize()


def _from_host(source: torch.Tensor, target: torch.Tensor) -> None:
    """Host to device through two pinned buffers: one is filled while the other one is copied."""
    if source.is_pinned():
        target.copy_(source, non_blocking=True)
        torch.accelerator.current_stream(target.device).synchronize()
        return
    buffers = [torch.empty(_PIECE, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    stream = torch.Stream(target.device)
    current = torch.accelerator.current_stream(target.device)
    stream.wait_stream(current)  # the target's memory may still be in use there
    copied: list[Any] = [None, None]
    try:
        for number, start in enumerate(range(0, source.numel(), _PIECE)):
            part = source[start : start + _PIECE]
            buffer = buffers[number % 2][: part.numel()]
            if copied[number % 2] is not None:
                copied[number % 2].synchronize()
            buffer.copy_(part)
            with stream:
                target[start : start + _PIECE].copy_(buffer, non_blocking=True)
                copied[number % 2] = stream.record_event()
    finally:
        stream.synchronize()  # the target's memory may go to others


def _to_host(source: torch.Tensor, target: torch.Tensor) -> None:
    """Device to host."""
    if source.device.type == "cpu":
        target.copy_(source)
        return
    start = 0
    for piece in pieces_on_host(source):
        part = torch.frombuffer(piece, dtype=torch.uint8)
        target[start : start + part.numel()].copy_(part)
        start += part.numel()


def pieces_on_host(data: torch.Tensor) -> Iterator[memoryview]:
    """The bytes of a tensor of bytes on a device, in order; each is valid until the next.

    Two pinned buffers: while one is used by the caller, the device fills the other.
    """
    size = min(_PIECE, data.numel())
    buffers = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    stream = torch.Stream(data.device)
    stream.wait_stream(torch.accelerator.current_stream(data.device))
    filled: list[Any] = [None, None]
    parts = data.split(_PIECE)

    def fetch(number: int) -> None:
        with stream:
            buffer = buffers[number % 2][: parts[number].numel()]
            buffer.copy_(parts[number], non_blocking=True)
            filled[number % 2] = stream.record_event()

    fetch(0)
    try:
        for number, part in enumerate(parts):
            if number + 1 < len(parts):
                fetch(number + 1)
            filled[number % 2].synchronize()
            yield memoryview(buffers[number % 2].numpy())[: part.numel()]
    finally:
        stream.synchronize()  # the buffers and the data may be freed now
