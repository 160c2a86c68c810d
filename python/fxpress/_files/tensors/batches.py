"""Copy tensors part by part, where somebody watches the progress."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxpress._base.observing.progress import Progress, reporting
from fxpress._torch.aten import storage_places

_PART = 64 << 20  # bytes


def copy_in_parts(
    copy: Callable[..., list[Any]], columns: Sequence[list[Any]], progress: Progress, what: str
) -> list[Any]:
    """Return copies of values, which are made part by part when somebody watches.

    Args:
        copy: called with the columns, or with those rows of them that are a part; returns a copy
            for each row. Values that share a storage, and equal objects, are in one part.
        columns: the values, which are tensors and other objects, and what else `copy` needs to
            know of each.
        progress: where progress is shown, after `check_progress`.
        what: a word for what is done.
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
    """Values that are copied together."""

    size: int  # bytes
    positions: list[int]


def _groups(values: list[Any]) -> list[_Part]:
    """Return the parts that cannot be divided."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    places = dict(zip(map(id, tensors), storage_places(tensors), strict=True))
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
    """Return the groups put together, up to about the size of a part."""
    parts: list[_Part] = []
    for group in groups:
        if parts and parts[-1].size + group.size <= _PART:
            parts[-1].size += group.size
            parts[-1].positions += group.positions
        else:
            parts.append(group)
    return parts
