"""Create torch's fake tensors and descriptions of tensors without torch's Python code.

The first object of each type comes from torch; later ones get copies of its attributes.
"""

from __future__ import annotations

from typing import Any

import torch

from fxpress._torch.fakes import fake_of, without_data
from fxpress._torch.tracing import (
    DisablePythonDispatcher,
    DisableTorchDispatch,
    FakeTensor,
    TensorMetadata,
    describe_tensor,
    fast_detach,
)


def is_plain(fake: Any) -> bool:
    """Return whether a value is a fake tensor of fixed sizes, without real or special parts."""
    return (
        type(fake) is FakeTensor
        and fake.layout is torch.strided
        and not fake._has_symbolic_sizes_strides
        and fake.real_tensor is None
        and vars(fake).get("dispatch_keys") is None
        and not fake.fake_mode._allow_unsafe_data_ptr_access
    )


class Fakes:
    """Shared state of a trace's fake tensors; call its methods without torch function modes."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, torch.device], dict[str, Any]] = {}
        self._described: dict[tuple[Any, ...], Any] = {}

    def detached(self, fake: Any) -> Any:
        """Return a detached fake tensor that shares the storage of a plain one."""
        state = self._states.get((id(fake.fake_mode), fake.fake_device))
        if state is None:
            made = fast_detach(fake.fake_mode, fake)
            self._states[id(fake.fake_mode), fake.fake_device] = dict(vars(made))
            return made
        with DisableTorchDispatch():
            return fake_of(fake, False, fake.fake_device, state)

    def of_metadata(self, mode: Any, metadata: Any, base: Any) -> Any:
        """Return a new fake tensor, or None if torch has to create it."""
        state = self._states.get((id(mode), metadata.device))
        if state is None:
            return None
        place = (metadata.shape, metadata.stride, metadata.storage_offset)
        with DisablePythonDispatcher(), DisableTorchDispatch():
            storage = None if base is None else base.untyped_storage()
            plain = without_data(*place, metadata.dtype, storage)
            return fake_of(plain, metadata.requires_grad, metadata.device, state)

    def set_meta(self, meta: dict[str, Any], fake: Any) -> None:
        """Describe a plain fake tensor in the meta of its node."""
        meta["val"] = self.detached(fake)
        meta["tensor_meta"] = self.description(fake)

    def description(self, fake: Any) -> Any:
        """Return the `tensor_meta` of a plain fake tensor."""
        if fake.is_quantized:
            return describe_tensor(fake)
        key = (fake.shape, fake.stride(), fake.dtype, fake.requires_grad)
        known = self._described.get(key)
        if known is None:
            known = self._described[key] = describe_tensor(fake)
            return known
        return TensorMetadata(*known[:-1], {})  # each has a separate dictionary
