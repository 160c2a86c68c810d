"""Find the storages and the elements of tensors that are to be written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from fxpress._files.serde.artifacts import check_values
from fxpress._files.tensors.copies import convert_like
from fxpress._torch.aten import storage_places
from fxpress._torch.fx import DisableTorchFunctionSubclass, is_fake


@dataclass
class Group:
    """Tensors of one dtype that share a storage."""

    address: int  # the address of the storage; 0 if it has no memory
    held: object  # references that keep the storages of all groups in memory
    size: int = 0  # bytes of the storage
    largest: torch.Tensor | None = None  # a tensor whose storage has `size` bytes; None: no memory
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """The device of the storage; the CPU if the storage has no memory."""
        return torch.device("cpu") if self.largest is None else self.largest.device


def is_of_subclass(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is of a subclass, whose storage may not contain the elements."""
    return type(tensor.data) is not torch.Tensor and not is_fake(tensor)


def without_lazy_bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy if it is a lazily conjugated or negated view."""
    if is_fake(tensor) or not (tensor.is_conj() or tensor.is_neg()):
        return tensor
    return convert_like(tensor.detach().resolve_conj().resolve_neg(), tensor)


def elements_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a CPU tensor whose memory contains the elements of `tensor` in order."""
    check_values({name: tensor})
    with DisableTorchFunctionSubclass():
        return without_lazy_bits(tensor).detach().cpu().contiguous()


def _place_of(tensor: torch.Tensor, held: list[object]) -> tuple[int | None, int]:
    """Return (address, bytes) of a tensor's storage, and keep it in `held`; (None, 0) if fake."""
    if is_fake(tensor):
        return None, 0
    storage = tensor.untyped_storage()
    held.append(storage)
    address = storage.data_ptr()
    return address, storage.nbytes() if address else 0


def group_by_storage(tensors: Mapping[str, torch.Tensor]) -> tuple[list[Group], list[str]]:
    """Group tensors by storage and dtype; also return the names of tensors of subclasses."""
    groups: dict[tuple[int | None, torch.dtype], Group] = {}
    others: list[str] = []
    places, *held = storage_places(list(tensors.values()))
    for (name, tensor), place in zip(tensors.items(), places, strict=True):
        value = tensor
        address, size = place or (None, 0)
        if place is None:
            if is_of_subclass(tensor):
                others.append(name)
                continue
            value = without_lazy_bits(tensor)
            address, size = _place_of(value, held)
        group = groups.get((address, value.dtype))
        if group is None:
            group = groups[address, value.dtype] = Group(address or 0, held)
        if size > group.size:  # storages at one address may have different sizes
            group.size, group.largest = size, value
        group.tensors[name] = value
    return list(groups.values()), others
