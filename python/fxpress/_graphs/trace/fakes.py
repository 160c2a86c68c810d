"""Create fake tensors and `tensor_meta` as copies, instead of running torch's Python code.

torch creates the first object for each key (sizes, dtype and others). Later ones are copies.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from fxpress._torch.fakes import (
    fake_of,
    fake_result,
    protects_data,
    without_data,
)
from fxpress._torch.symbols import another_number, comparable
from fxpress._torch.tracing import (
    DisablePythonDispatcher,
    DisableTorchDispatch,
    FakeTensor,
    describe_tensor,
    dispatch_keys,
    fast_detach,
    version_of,
)


def is_plain(fake: Any) -> bool:
    """Return whether a value is a simple fake tensor (`is_simple`) without symbolic sizes."""
    return is_simple(fake) and not fake._has_symbolic_sizes_strides


def is_simple(fake: Any) -> bool:
    """Return whether a value is a strided FakeTensor without a real tensor and `dispatch_keys`."""
    return (
        type(fake) is FakeTensor
        and fake.layout is torch.strided
        and fake.real_tensor is None
        and vars(fake).get("dispatch_keys") is None
        and not fake.fake_mode._allow_unsafe_data_ptr_access
    )


class Fakes:
    """Creates the fake tensors of a trace. Callers must disable torch function modes first."""

    def __init__(self) -> None:
        # (id of the fake mode, device) -> the attributes of its fake tensors
        self._states: dict[tuple[int, torch.device], dict[str, Any]] = {}
        self._patterns: dict[tuple[Any, ...], Any] = {}  # tensors to copy; users cannot reach them
        self._keys: dict[tuple[Any, ...], Any] = {}  # facts -> dispatch keys of torch's tensor
        self._described: dict[tuple[Any, ...], Any] = {}  # the `tensor_meta` to copy

    def detached(self, fake: Any) -> Any:
        """Return a detached copy of a simple fake tensor; both have the same storage."""
        state = self._states.get((id(fake.fake_mode), fake.fake_device))
        if state is None:
            made = fast_detach(fake.fake_mode, fake)
            self._states[id(fake.fake_mode), fake.fake_device] = dict(vars(made))
            return made
        with DisableTorchDispatch():
            return fake_of(fake, False, fake.fake_device, state)

    def of_metadata(self, mode: Any, metadata: Any, base: Any) -> Any:
        """Return a fake tensor with `metadata`; None if torch must create the mode's first tensor.

        `base` is the tensor of which the new tensor is a view, or None.
        """
        state = self._states.get((id(mode), metadata.device))
        if state is None:
            return None
        geometry = (metadata.shape, metadata.stride, metadata.storage_offset)
        with DisablePythonDispatcher(), DisableTorchDispatch():
            storage = None if base is None else base.untyped_storage()
            plain = without_data(*geometry, metadata.dtype, storage)
            return fake_of(plain, metadata.requires_grad, metadata.device, state)

    def result(
        self,
        pattern: Any,
        base: Any,
        *,
        edge: Any = None,
        numbers: tuple[Any, Any, Any] | None = None,
    ) -> Any:
        """Return a fake tensor with the metadata of `pattern`, which `detached` returned.

        Args:
            base: the tensor whose storage the result has; None: a new storage.
            edge: a tensor with the result's gradient edge; None: the result has no edge.
            numbers: sizes, strides and offset of a result with symbolic ints.
        """
        attributes = self._states[id(pattern.fake_mode), pattern.fake_device]
        given = None
        with DisablePythonDispatcher(), DisableTorchDispatch():
            if numbers is not None:
                size = another_number(pattern.untyped_storage().nbytes()) if base is None else 0
                given = (size, *numbers)
            made = fake_result(pattern, base, edge, given, protects_data(attributes))
        vars(made).update(attributes)
        return made

    def of_numbers(
        self, mode: Any, metadata: Any, numbers: Any, base: Any, call_torch: Callable[[], Any]
    ) -> Any:
        """Return a fake tensor with symbolic `numbers`: (sizes, strides, offset).

        `call_torch` creates the first tensor with a key. Later tensors copy what torch computed
        about the first one's layout, such as contiguity. They get new SymInts for their numbers and
        the size of their storage, because tracers and torch's cache compare SymInts by identity.
        """
        sizes, strides, offset = numbers
        expressions = tuple(map(comparable, (*sizes, *strides, offset)))
        state = (metadata.dtype, metadata.device, metadata.requires_grad)
        key = (id(mode), expressions, base is None, *state, torch.is_inference_mode_enabled())
        pattern = self._patterns.get(key)
        if pattern is None:
            made = call_torch()
            symbolic = type(made) is FakeTensor and made._has_symbolic_sizes_strides
            if fake_result is not None and symbolic:
                # A separate tensor, because the user's code may change the metadata of `made`.
                self._patterns[key] = self.detached(made)
            return made
        return self.result(pattern, base, numbers=numbers)

    def with_same_keys(self, output: Any, is_new: bool, call_torch: Callable[[], Any]) -> Any:
        """Return `output` if new tensors are known to have its dispatch keys; else, a new tensor.

        Args:
            output: a strided fake tensor, and not a conjugate or negative view.
            is_new: whether `output` has its own storage.
            call_torch: creates a tensor with the metadata of `output`.
        """
        facts = (output.device, output.requires_grad, output.is_quantized, is_new)
        key = (*facts, torch.is_inference_mode_enabled())
        if self._keys.get(key) == dispatch_keys(output):
            return output
        made = call_torch()
        self._keys[key] = dispatch_keys(made)
        return made

    def set_meta(self, meta: dict[str, Any], fake: Any) -> None:
        """Set the `val` and `tensor_meta` of a node whose value is a simple fake tensor."""
        meta["val"] = self.detached(fake)
        meta["tensor_meta"] = self.description(fake)

    def description(self, fake: Any) -> Any:
        """Return the `tensor_meta` of a fake tensor for which `is_simple` holds."""
        if fake.is_quantized:
            return describe_tensor(fake)
        sizes, strides = fake.shape, fake.stride()
        numbers: tuple[Any, ...] = (sizes, strides)
        if fake._has_symbolic_sizes_strides:
            # A new guard can make a tensor contiguous. A nested trace may have another ShapeEnv.
            state = (fake.fake_mode.shape_env, version_of(fake))
            numbers = (*state, *map(comparable, (*sizes, *strides)))
        key = (numbers, fake.dtype, fake.requires_grad)
        known = self._described.get(key)
        if known is None:
            known = self._described[key] = describe_tensor(fake)
            return known
        # Set new sizes and qparams, because nodes must not share these objects.
        return known._replace(shape=sizes, stride=strides, qparams={})
