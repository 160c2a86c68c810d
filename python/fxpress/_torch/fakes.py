"""Build fake tensors from their parts, without the Python code of FakeTensor's constructor."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor

try:
    from fxpress._torch import aten

    call_digest: Any = aten.call_digest
    fake_result: Any = aten.fake_result
    known_layout: Any = aten.known_layout
    layout_of: Any = aten.layout_of
    give_layout: Any = aten.give_layout
    make_meta: Any = aten.make_meta
    UNDECIDED: int = aten.UNDECIDED
except ImportError:  # fxpress has no `_aten` extension for this torch
    call_digest = fake_result = known_layout = layout_of = give_layout = None
    UNDECIDED = 0

    def make_meta(numbers: tuple[Any, ...], dtype: torch.dtype, storage: Any) -> torch.Tensor:
        """Return a tensor on the meta device; `numbers`: (bytes, sizes, strides, offset)."""
        _, sizes, strides, offset = numbers
        if storage is None and offset == 0:
            return torch.empty_strided(sizes, strides, dtype=dtype, device=META)
        used = torch.UntypedStorage(0, device=META) if storage is None else storage
        return torch.empty(0, dtype=dtype, device=META).set_(used, offset, sizes, strides)


make_subclass = torch.Tensor._make_subclass
protect_data = torch._C._set_throw_on_mutable_data_ptr
META = torch.device("meta")


def attributes_of(mode: Any, device: torch.device) -> dict[str, Any]:
    """Return the attributes that are the same for all fake tensors of a mode on a device."""
    return dict(vars(FakeTensor(mode, torch.empty(0, device=META), device)))


def protects_data(attributes: dict[str, Any]) -> bool:
    """Return whether fake tensors with these attributes raise if their data is accessed."""
    return not getattr(attributes["fake_mode"], "_allow_unsafe_data_ptr_access", False)


def without_data(
    shape: Any, strides: Any, offset: Any, dtype: torch.dtype, storage: Any
) -> torch.Tensor:
    """Return a tensor on the meta device, in `storage` or, if it is None, in a new storage."""
    if storage is None:
        return torch.empty_strided(shape, strides, dtype=dtype, device=META)
    return make_meta((0, shape, strides, offset), dtype, storage)


def fake_of(
    tensor: torch.Tensor, requires_grad: bool, device: torch.device, attributes: dict[str, Any]
) -> Any:
    """Return a fake tensor on `device` with the storage, sizes and strides of `tensor`."""
    made = make_subclass(
        FakeTensor, tensor, requires_grad, dispatch_device=True, device_for_backend_keys=device
    )
    if protects_data(attributes):
        protect_data(made)
    vars(made).update(attributes)
    return made
