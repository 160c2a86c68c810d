"""The steps of copies between host and device, with the host in place of a device.

What it cannot show: that streams and events order them. That needs a GPU.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch

from fxpress._state import transfer

SIZES = [0, 1, 7, 64, 3, 1000, 64, 129]


class Stream(contextlib.AbstractContextManager["Stream"]):
    """A stream on which everything is done at once."""

    def __init__(self, _: object = None) -> None:
        self.events = 0

    def __exit__(self, *error: object) -> None:
        return None

    def wait_stream(self, other: object) -> None:
        assert isinstance(other, Stream)

    def record_event(self) -> Stream:
        self.events += 1
        return self

    def synchronize(self) -> None:
        pass


class Accelerator:
    current_stream = staticmethod(Stream)


class Torch:
    """torch, with pinned memory and streams that every machine has."""

    Stream = Stream
    accelerator = Accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def empty(*sizes: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.empty(*sizes, **options)


@pytest.fixture(autouse=True)
def host_as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "torch", Torch())
    monkeypatch.setattr(transfer, "_PIECE", 64)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: self.clone())


def sources() -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (n,), dtype=torch.uint8, generator=chance) for n in SIZES]


def test_small_ones_together() -> None:
    small = [source for source in sources() if source.numel() <= 64]
    targets = [torch.zeros_like(source) for source in small]
    before = [source.clone() for source in small]
    transfer._small_from_host(list(zip(targets, small, strict=True)))
    for target, source, kept in zip(targets, small, before, strict=True):
        assert torch.equal(source, kept)
        assert torch.equal(target, source)


@pytest.mark.parametrize("position", range(1, len(SIZES)))
def test_pieces_to_a_device(position: int) -> None:
    source = sources()[position]
    target = torch.zeros_like(source)
    transfer._from_host(source, target)
    assert torch.equal(target, source)


@pytest.mark.parametrize("position", range(1, len(SIZES)))
def test_pieces_from_a_device(position: int) -> None:
    source = sources()[position]
    read = b"".join(bytes(piece) for piece in transfer.pieces_on_host(source))
    assert read == source.numpy().tobytes()
