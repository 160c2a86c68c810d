"""Copy bytes from one device to another, in few steps however many tensors there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fxpress._files.tensors.pinned import Part, download, split, upload
from fxpress._torch.aten import allocate_bytes
from fxpress._torch.fx import foreach_copy

_LARGE = 1 << 20  # bytes from which a tensor gets a copy of its own


def to_device(storages: Sequence[torch.Tensor], device: torch.device | None) -> list[torch.Tensor]:
    """Return copies of tensors of bytes (uint8, one dimension) on a device; None: on their own."""
    made: dict[int, torch.Tensor] = {}
    for here in {source.device for source in storages}:
        positions = [i for i, source in enumerate(storages) if source.device == here]
        sources = [storages[i] for i in positions]
        targets, _ = allocate_bytes([source.numel() for source in sources], device or here)
        _copy(sources, targets)
        made.update(zip(positions, targets, strict=True))
    return [made[i] for i in range(len(storages))]


def _copy(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Copy tensors of bytes on one device, not meta, to others of the same sizes on one device."""
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
    """Copy on the host, or between devices in their current streams."""
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
        if any(pinned):  # the sources may be freed now
            torch.accelerator.current_stream(targets[0].device).synchronize()


def _to_host(sources: Sequence[torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    for parts, buffer in download(sources):
        foreach_copy([part.of(targets) for part in parts], split(buffer, parts))
