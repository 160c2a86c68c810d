"""Copy tensors to any device, so that copies share storages where the originals do."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from fxpress import _native
from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._files.tensors.transfer import to_device
from fxpress._torch import aten
from fxpress._torch.watching import operation

_CPU = torch.device("cpu")
_PART = 64 << 20  # bytes that are copied between two reports of progress


def _values(tensors: Any) -> list[torch.Tensor]:
    if type(tensors) is list:
        return tensors
    return list(tensors.values() if isinstance(tensors, Mapping) else tensors)


def _like(tensors: Any, results: list[torch.Tensor]) -> Any:
    """Return a dict with the keys of `tensors` if it is a mapping, else the list of results."""
    return dict(zip(tensors, results, strict=True)) if isinstance(tensors, Mapping) else results


def _copy_alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor that is not a strided view of a storage, such as a sparse one."""
    return convert_like(tensor.detach().clone(), tensor)


def convert_like(made: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Return `made` with the requires_grad of `original`, as a Parameter if `original` is one."""
    if isinstance(original, torch.nn.Parameter):
        return torch.nn.Parameter(made, original.requires_grad)
    return made.requires_grad_(original.requires_grad)


def _sizes(_: Any, tensors: Any, *__: Any, **___: Any) -> dict[str, int]:
    values = _values(tensors)
    return {"tensors": len(values), "bytes": aten.storage_bytes(values)}


@operation("state.clone", _sizes)
def clone(tensors: Any, *, progress: Progress = False) -> Any:
    """Return copies of tensors. The copies share storages where the originals do.

    A copy has the sizes, strides and requires_grad of its original, and is a Parameter if the
    original is one. Autograd history and attributes of tensors are not copied. On the CPU, only the
    bytes of a storage that the tensors use are copied. torch does not have this function.

    Args:
        tensors: a mapping, or a sequence.
        progress: how to show progress, in bytes: True or a function of (done, total, what).

    Returns:
        A dict for a mapping, else a list. A tensor object that occurs several times has one copy.

    Raises:
        TypeError: a value is not a tensor, or `progress` is of another type.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> from fxpress import state
        >>> row = torch.zeros(2, 3)[0]
        >>> copies = state.clone({"a": row, "b": row})
        >>> copies["a"] is copies["b"], copies["a"] is row
        (True, False)
    """
    check_progress(progress)
    return _like(tensors, copy_in_parts(_clone, (_values(tensors),), progress, "copying"))


def _clone(values: list[torch.Tensor]) -> list[torch.Tensor]:
    copies, others = aten.clone_aliased(values)
    if others:
        # A CPU tensor is in `others` if it is not a plain strided view, or a mode observes copies.
        made = _copy_storages(list(others.values()), None, but_on=_CPU, alone=_copy_alone)
        for i, copied in zip(others, made, strict=True):
            copies[i] = copied
    return copies


@operation("state.move", _sizes)
def move(tensors: Any, device: torch.device | str, *, progress: Progress = False) -> Any:
    """Return the tensors on a device. The results share storages where the originals do.

    As with `Tensor.to`, a tensor that is already on the device is returned itself. The copies are
    ordered with the other work on the device's current stream. torch does not have this function.

    Args:
        tensors: a mapping, or a sequence.
        device: the device of the results.
        progress: how to show progress, in bytes: True or a function of (done, total, what).

    Returns:
        A dict for a mapping, else a list.

    Raises:
        RuntimeError: the device does not exist.
        TypeError: a value is not a tensor, or `progress` is of another type.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> from fxpress import state
        >>> state.move([torch.ones(2)], "meta")
        [tensor(..., device='meta', size=(2,))]
    """
    check_progress(progress)
    goal = torch.empty(0, device=device).device  # with an index; raises if the device is missing

    values = _values(tensors)
    for value in values:
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"expected tensors, got a {type(value).__name__}")

    def moved(part: list[torch.Tensor]) -> list[torch.Tensor]:
        return _move(part, goal)

    return _like(tensors, copy_in_parts(moved, (values,), progress, "copying"))


def _move(values: list[torch.Tensor], goal: torch.device) -> list[torch.Tensor]:
    def alone(value: torch.Tensor) -> torch.Tensor:
        return value if value.device == goal else convert_like(value.detach().to(goal), value)

    return _copy_storages(values, goal, but_on=goal, alone=alone)


def _copy_storages(
    values: list[torch.Tensor],
    device: torch.device | None,
    *,
    but_on: torch.device,
    alone: Callable[[torch.Tensor], torch.Tensor],
) -> list[torch.Tensor]:
    """Return tensors like `values` on copies of their storages, on `device` unless it is None."""

    def copies(first: list[torch.Tensor]) -> list[torch.Tensor]:
        return to_device(aten.storages_of(first), device)

    return on_other_storages(values, copies, alone, but_on=but_on)


def on_other_storages(
    values: list[torch.Tensor],
    make: Callable[[list[torch.Tensor]], list[torch.Tensor]],
    alone: Callable[[torch.Tensor], torch.Tensor],
    *,
    but_on: torch.device | None = None,
) -> list[torch.Tensor]:
    """Return tensors like `values` on new storages. The results share storages where `values` do.

    `make` receives one tensor of each storage, and returns a byte tensor for each new storage.
    `alone` copies a tensor on the device `but_on`, of a subclass, or without a strided storage.
    """
    with _native.GcPause():
        numbers = aten.storage_numbers(values, but_on)
        first: dict[int, torch.Tensor] = {}
        for number, value in zip(numbers, values, strict=True):
            if number == len(first):
                first[number] = value
        made: list[Any] = aten.views_like(
            values, numbers, make(list(first.values())) if first else []
        )
    others: dict[int, torch.Tensor] = {}
    for i, value in enumerate(values):
        if made[i] is None:
            if id(value) not in others:
                others[id(value)] = alone(value)
            made[i] = others[id(value)]
    return made


def sharing(values: list[Any]) -> list[list[int]]:
    """Return, for each storage that several values share, the positions of these values."""
    numbers = aten.storage_numbers(values)
    if max(numbers, default=-1) + 1 + numbers.count(-1) == len(numbers):
        return []
    found: dict[int, list[int]] = {}
    for position, number in enumerate(numbers):
        if number >= 0:
            found.setdefault(number, []).append(position)
    return [positions for positions in found.values() if len(positions) > 1]


def copy_sharing(
    values: list[torch.Tensor], device: torch.device | None, *, copy: bool
) -> list[torch.Tensor]:
    """Move `values` to `device`, unless None; the results share storages where `values` do.

    With `copy`, tensors that are already on the device are copied, too.
    """
    moved = values if device is None else _move(values, torch.empty(0, device=device).device)
    staying = [i for i, value in enumerate(values) if moved[i] is value] if copy else []
    made = list(moved)
    for i, copied in zip(staying, _clone([values[i] for i in staying]), strict=True):
        made[i] = copied
    return made


def copy_in_parts(
    copy: Callable[..., list[Any]], columns: Sequence[list[Any]], progress: Progress, what: str
) -> list[Any]:
    """Return `copy(*columns)`. To report progress, call `copy` repeatedly, on parts of the columns.

    `columns[0]` contains the values to copy. Values that share a storage are in one part.
    """
    if progress is False:
        return copy(*columns)
    groups = _groups(columns[0])
    with reporting(progress, what, sum(group.size for group in groups)) as report:
        if report is None:
            return copy(*columns)
        made: dict[int, Any] = {}
        for part in _parts(groups):
            rows = ([column[i] for i in part.positions] for column in columns)
            made.update(zip(part.positions, copy(*rows), strict=True))
            report(part.size)
    return [made[i] for i in range(len(columns[0]))]


@dataclasses.dataclass
class _Part:
    """The positions of the values that one call copies."""

    size: int  # bytes
    positions: list[int]


def _groups(values: list[Any]) -> list[_Part]:
    """Split values into groups; the values of a group share a storage or are the same object."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    places = dict(zip(map(id, tensors), aten.storage_places(tensors)[0], strict=True))
    groups: dict[tuple[str, int], _Part] = {}
    for position, value in enumerate(values):
        place = places.get(id(value))
        key = ("object", id(value)) if place is None else ("storage", place[0])
        group = groups.setdefault(key, _Part(0, []))
        group.positions.append(position)
        if place is not None:
            group.size = max(group.size, place[1])
    return list(groups.values())


def _parts(groups: list[_Part]) -> list[_Part]:
    """Merge neighboring groups into parts of at most `_PART` bytes; a larger group is one part."""
    parts: list[_Part] = []
    for group in groups:
        if parts and parts[-1].size + group.size <= _PART:
            parts[-1].size += group.size
            parts[-1].positions += group.positions
        else:
            parts.append(group)
    return parts
