"""Simulate a GPU with streams that do their work late or at once, as a seed decides.

If a tensor is read, or a buffer is used again, before the stream's work is done, bytes are wrong.
The memory of the device is host memory; a list of addresses states which storages it has.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from fxpress._files.tensors import transfer

Work = Callable[[], object]


class Device:
    """Streams and memory. `chance`: how probably work runs before anything waits for the work."""

    def __init__(self, seed: int, chance: float) -> None:
        self._random = random.Random(seed)
        self._chance = chance
        self._memory: list[tuple[int, int]] = []
        self.streams: list[Stream] = []
        self.default = Stream(self)
        self.current = self.default
        self.pinned: list[int] = []  # bytes of the requested buffers
        self.launches = 0

    def empty(self, size: int, **options: Any) -> torch.Tensor:
        """Memory with garbage, pinned or of the device."""
        made = torch.full((size,), 0xAA, dtype=torch.uint8)
        if options.get("pin_memory"):
            assert options["device"] == "cpu", "a default device may be in force"
            self.pinned.append(size)
        else:
            self.own(made)
        return made

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Register the storage of a tensor as memory of the device."""
        start = tensor.untyped_storage().data_ptr()
        self._memory.append((start, start + tensor.untyped_storage().nbytes()))
        return tensor

    def has(self, tensor: torch.Tensor) -> bool:
        place = tensor.untyped_storage().data_ptr()
        return any(start <= place < end for start, end in self._memory)

    def enqueue(self, work: Work) -> None:
        """Enqueue work on the current stream; run some of the waiting work."""
        self.launches += 1
        self.current.waiting.append(work)
        for stream in self.streams:
            while stream.waiting and self._random.random() < self._chance:
                stream.step()


class Stream:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.waiting: deque[Work] = deque()
        self.done = 0
        self._before: list[Stream] = []
        device.streams.append(self)

    def __enter__(self) -> Stream:
        self._before.append(self.device.current)
        self.device.current = self
        return self

    def __exit__(self, *error: object) -> None:
        self.device.current = self._before.pop()

    def step(self) -> None:
        work = self.waiting.popleft()
        self.done += 1
        with torch._C.DisableTorchFunction():
            work()

    def reach(self, count: int) -> None:
        while self.done < count:
            self.step()

    def synchronize(self) -> None:
        self.reach(self.done + len(self.waiting))

    def wait_stream(self, other: Stream) -> None:
        goal = other.done + len(other.waiting)
        self.waiting.append(lambda: other.reach(goal))

    def record_event(self) -> Any:
        goal = self.done + len(self.waiting)
        return SimpleNamespace(synchronize=lambda: self.reach(goal))


class _Launches(TorchFunctionMode):
    """A mode that enqueues operations on the device's memory in its streams."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self._device = device

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        is_cat = function is torch.cat
        if not is_cat and function not in (torch.Tensor.copy_, torch._foreach_copy_):
            return function(*args, **kwargs)
        targets = _tensors(kwargs["out"] if is_cat else args[0])
        sources = _tensors(args[0] if is_cat else args[1])
        if not any(map(self._device.has, targets + sources)):
            return function(*args, **kwargs)
        if function is torch.Tensor.copy_:
            assert kwargs.get("non_blocking"), "it would wait"

        self._device.enqueue(lambda: function(*args, **kwargs))
        return args[0]


def _tensors(value: Any) -> list[torch.Tensor]:
    return list(value) if isinstance(value, Sequence) else [value]


class _Torch:
    """torch, with this device's memory and streams."""

    def __init__(self, device: Device) -> None:
        self.empty = device.empty
        self.Stream = lambda _: Stream(device)
        self.accelerator = SimpleNamespace(current_stream=lambda _: device.current)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


@contextmanager
def late_device(seed: int, chance: float, piece: int) -> Iterator[Device]:
    """Simulate a device in a block, in place of all other devices.

    Args:
        chance: 0: work runs only when something waits for it; almost 1: work runs at once.
        piece: bytes of a pinned buffer.
    """
    device = Device(seed, chance)
    with pytest.MonkeyPatch.context() as patch, _Launches(device):
        patch.setattr(transfer, "torch", _Torch(device))
        patch.setattr(transfer, "_PIECE", piece)
        patch.setattr(transfer, "_FEW", 4)
        patch.setattr(transfer, "_LARGE", 100)
        yield device
