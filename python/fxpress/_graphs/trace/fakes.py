"""Create torch's fake tensors and descriptions of tensors without torch's Python code.

The first object of each type comes from torch; later ones get copies of its attributes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxpress._torch.fakes import (
    fake_of,
    fake_with_numbers,
    protects_data,
    without_data,
)
from fxpress._torch.symbols import another_number, comparable
from fxpress._torch.tracing import (
    DisablePythonDispatcher,
    DisableTorchDispatch,
    FakeTensor,
    describe_tensor,
    fast_detach,
    version_of,
)


def is_plain(fake: Any) -> bool:
    """Return whether a value is a fake tensor of fixed sizes, without real or special parts."""
    return is_simple(fake) and not fake._has_symbolic_sizes_strides


def is_simple(fake: Any) -> bool:
    """Return whether a value is a fake tensor without real or special parts."""
    return (
        type(fake) is FakeTensor
        and fake.layout is torch.strided
        and fake.real_tensor is None
        and vars(fake).get("dispatch_keys") is None
        and not fake.fake_mode._allow_unsafe_data_ptr_access
    )


class Fakes:
    """Shared state of a trace's fake tensors; call its methods without torch function modes."""

    def __init__(self) -> None:
        self._states: dict[tuple[int, torch.device], dict[str, Any]] = {}
        self._patterns: dict[tuple[Any, ...], Any] = {}  # fake tensors that nobody changes
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

    def of_numbers(
        self, mode: Any, metadata: Any, numbers: Any, base: Any, torchs: Callable[[], Any]
    ) -> Any:
        """Return a new fake tensor with symbolic numbers; `torchs` creates the first of equal ones.

        The numbers and the size of the storage are separate objects, because tracers and torch's
        cache distinguish equal ones. Only facts about the layout are not computed again.
        """
        sizes, strides, offset = numbers
        expressions = tuple(map(comparable, (*sizes, *strides, offset)))
        state = (metadata.dtype, metadata.device, metadata.requires_grad)
        key = (id(mode), expressions, base is None, *state, torch.is_inference_mode_enabled())
        pattern = self._patterns.get(key)
        if pattern is None:
            made = torchs()
            symbolic = type(made) is FakeTensor and made._has_symbolic_sizes_strides
            if fake_with_numbers is not None and symbolic:
                # The user's code may change the metadata of the tensor that it gets.
                self._patterns[key] = self.detached(made)
            return made
        attributes = self._states[id(mode), metadata.device]
        with DisablePythonDispatcher(), DisableTorchDispatch():
            storage = None if base is None else base.untyped_storage()
            size = another_number(pattern.untyped_storage().nbytes()) if base is None else 0
            protects = protects_data(attributes)
            made = fake_with_numbers(pattern, storage, size, sizes, strides, offset, protects)
        vars(made).update(attributes)
        return made

    def set_meta(self, meta: dict[str, Any], fake: Any) -> None:
        """Describe a simple fake tensor in the meta of its node."""
        meta["val"] = self.detached(fake)
        meta["tensor_meta"] = self.description(fake)

    def description(self, fake: Any) -> Any:
        """Return the `tensor_meta` of a simple fake tensor."""
        if fake.is_quantized:
            return describe_tensor(fake)
        sizes, strides = fake.shape, fake.stride()
        numbers: tuple[Any, ...] = (sizes, strides)
        if fake._has_symbolic_sizes_strides:
            # A new guard can show that a tensor is contiguous.
            numbers = (version_of(fake), *map(comparable, (*sizes, *strides)))
        key = (numbers, fake.dtype, fake.requires_grad)
        known = self._described.get(key)
        if known is None:
            known = self._described[key] = describe_tensor(fake)
            return known
        # Each has its own numbers, and a separate dictionary.
        return known._replace(shape=sizes, stride=strides, qparams={})
