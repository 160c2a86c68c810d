"""Copies of tensors, on the device that they are on or on another one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from fxpress import _native
from fxpress._aten import clone_aliased, make_views, storage_places
from fxpress._state.transfer import bytes_of, to_device
from fxpress._torch_compat import storage_key


def _apply(
    tensors: Any, function: Callable[[list[torch.Tensor]], list[torch.Tensor]]
) -> dict[str, torch.Tensor] | list[torch.Tensor]:
    """Calls a function of a list, with each tensor once; the same kind of container."""
    values = list(tensors.values()) if isinstance(tensors, Mapping) else list(tensors)
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"expected tensors, got a {type(value).__name__}")
    unique = list({id(value): value for value in values}.values())
    made = dict(zip(map(id, unique), function(unique), strict=True))
    results = [made[id(value)] for value in values]
    if isinstance(tensors, Mapping):
        return dict(zip(tensors, results, strict=True))
    return results


def _copy_alone(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a tensor that is more than a view of a storage."""
    copied = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        return torch.nn.Parameter(copied, tensor.requires_grad)
    return copied.requires_grad_(tensor.requires_grad)


def clone(tensors: Any) -> Any:
    """Copies of tensors, which share storages where the originals do.

    Sizes, strides, Parameters and requires_grad stay as they are; history and attributes that were
    set on tensors are not copied. On the CPU a storage is copied as far as the tensors see it.

    Args:
        tensors: a mapping, or a sequence.

    Returns:
        A dict, or a list; a tensor that occurs twice is one copy.

    Raises:
        TypeError: there is something else than tensors.
    """

    def cloned(values: list[torch.Tensor]) -> list[torch.Tensor]:
        copies = clone_aliased(values)
        others = [i for i, copied in enumerate(copies) if copied is None]
        places = storage_places([values[i] for i in others])
        elsewhere = [i for i, place in zip(others, places, strict=True) if place is not None]
        for i, made in zip(elsewhere, _copy_storages(values, elsewhere, None), strict=True):
            copies[i] = made
        return [
            _copy_alone(value) if copied is None else copied
            for value, copied in zip(values, copies, strict=True)
        ]

    return _apply(tensors, cloned)


def move(tensors: Any, device: torch.device | str) -> Any:
    """Tensors on another device, which share storages there where the originals do.

    As `Tensor.to`: what is there already is returned as it is. The work is ordered with that of
    the device's current stream.

    Args:
        tensors: a mapping, or a sequence.
        device: where they go.

    Returns:
        A dict, or a list.

    Raises:
        RuntimeError: there is no such device.
        TypeError: there is something else than tensors.
    """
    goal = torch.empty(0, device=device).device  # with its index; an error for no device

    def moved(values: list[torch.Tensor]) -> list[torch.Tensor]:
        results = list(values)
        away = [i for i, value in enumerate(values) if value.device != goal]
        places = storage_places([values[i] for i in away])
        plain = [i for i, place in zip(away, places, strict=True) if place is not None]
        for i, made in zip(plain, _copy_storages(values, plain, goal), strict=True):
            results[i] = made
        for i in set(away) - set(plain):
            value = values[i]
            there = value.detach().to(goal)
            if isinstance(value, torch.nn.Parameter):
                results[i] = torch.nn.Parameter(there, value.requires_grad)
            else:
                results[i] = there.requires_grad_(value.requires_grad)
        return results

    return _apply(tensors, moved)


def _copy_storages(
    values: list[torch.Tensor], chosen: list[int], device: torch.device | None
) -> list[torch.Tensor]:
    """Copies of the chosen tensors, by copying their storages as a whole.

    Args:
        device: where they go; None: where they are.
    """
    if not chosen:
        return []
    with _native.GcPause():
        positions: dict[int, int] = {}
        storages: list[torch.Tensor] = []
        views = []
        for i in chosen:
            value = values[i]
            storage = value.untyped_storage()
            position = positions.setdefault(storage_key(storage), len(storages))
            if position == len(storages):
                storages.append(bytes_of(storage))
            about = (value.dtype, tuple(value.shape), value.stride(), value.storage_offset())
            is_parameter = isinstance(value, torch.nn.Parameter)
            views.append((position, "a storage", *about, value.requires_grad, is_parameter))
    return make_views(to_device(storages, device), views)
