"""Describe the tensors of a checkpoint: dtypes, sizes, and the locations of their slices."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch

from fxpress._distributed.checkpoint.boxes import Extent, read_box, strides_of
from fxpress._files.archive.weight_files import difference_of
from fxpress._files.errors import ArchiveError
from fxpress._files.remote.ranges import Files
from fxpress._files.serde.limits import Budget
from fxpress._torch.fx import holds_fake

# The location of a tensor in a file, or a function that reads the entire tensor.
Place: TypeAlias = Extent | Callable[[], torch.Tensor]


class Slice(NamedTuple):
    """A part of a tensor that is stored at one location."""

    offsets: tuple[int, ...]  # the indices of the slice's first element in the tensor
    sizes: tuple[int, ...]  # the slice's length in each dimension
    # Returns the slice's location; OSError or ArchiveError if the file does not have the slice.
    find: Callable[[], Place]


class Stored(NamedTuple):
    """A tensor of a checkpoint. Its slices cover it without overlaps."""

    dtype: Any  # a torch.dtype, or the dtype's name if torch does not have it
    sizes: tuple[int, ...]
    slices: tuple[Slice, ...]


@dataclass
class Weights:
    """The contents of a checkpoint."""

    tensors: dict[str, Stored] = field(default_factory=dict)  # name -> the tensor
    values: dict[str, Any] = field(default_factory=dict)  # name -> a value that is not a tensor
    files: Files = field(default_factory=Files)  # the files that are read
    # Identifies the checkpoint: JSON that is equal on all ranks that read the same files.
    facts: list[Any] = field(default_factory=list)
    # Called after a tensor was read in full, with its size in bytes.
    report: Callable[[int], None] | None = None

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        self.files.close()

    def digest(self) -> str:
        """Return a hash of the checkpoint; ranks with equal hashes read the same checkpoint."""
        tensors = [
            [
                name,
                str(each.dtype),
                each.sizes,
                [(part.offsets, part.sizes) for part in each.slices],
            ]
            for name, each in sorted(self.tensors.items())
        ]
        text = json.dumps([tensors, sorted(self.values), self.facts])
        return hashlib.sha256(text.encode()).hexdigest()

    def read(self, name: str, target: torch.Tensor | None = None) -> torch.Tensor:
        """Read a tensor into `target`, or into a new tensor; KeyError for an unknown name."""
        stored = self.tensors[name]
        places = [part.find() for part in stored.slices]  # raises if torch lacks the dtype
        if target is None:
            target = torch.empty(stored.sizes, dtype=stored.dtype)
        for part, place in zip(stored.slices, places, strict=True):
            whole = target
            for dim, (start, size) in enumerate(zip(part.offsets, part.sizes, strict=True)):
                if size != stored.sizes[dim]:
                    whole = whole.narrow(dim, start, size)
            copy_box(place, (0,) * len(part.sizes), part.sizes, whole)
        if self.report is not None:
            self.report(target.nbytes)
        return target

    def bytes(self) -> int:
        """Return the number of bytes of all tensors."""
        return sum(
            math.prod(each.sizes) * int(getattr(each.dtype, "itemsize", 0))
            for each in self.tensors.values()
        )


def copy_box(
    place: Place, offsets: Sequence[int], sizes: Sequence[int], target: torch.Tensor
) -> None:
    """Copy a box of a stored slice into a tensor of the box's sizes."""
    if isinstance(place, Extent):
        read_box(place, offsets, sizes, target)
        return
    found = place()
    # `copy_` from a tensor without values leaves the target unchanged, without an error.
    if found.layout is not torch.strided or found.is_meta or holds_fake(found):
        raise ArchiveError("a tensor of the checkpoint is sparse, or does not have values")
    for dim, (start, size) in enumerate(zip(offsets, sizes, strict=True)):
        found = found.narrow(dim, start, size)
    target.copy_(found)


def whole(dtype: torch.dtype, sizes: tuple[int, ...], find: Callable[[], Place]) -> Stored:
    """Describe a tensor that is stored as one slice."""
    return Stored(dtype, sizes, (Slice((0,) * len(sizes), sizes, find),))


def charge_repeats(name: str, stored: Stored, bytes_there: int, budget: Budget) -> None:
    """Charge the budget for elements that share bytes in a file, but need separate memory."""
    size = stored.dtype.itemsize * math.prod(stored.sizes)
    if size > bytes_there:
        budget.charge(size - bytes_there, f"the elements of {name!r} that share memory")


def is_dense(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Return whether a tensor of these sizes and strides is contiguous."""
    wanted = strides_of(sizes)
    return all(n == 1 or a == b for n, a, b in zip(sizes, strides, wanted, strict=True))


def add(weights: Weights, name: str, stored: Stored, where: str) -> None:
    """Add a tensor; ArchiveError if a previous file has it with another dtype or other sizes."""
    known = weights.tensors.setdefault(name, stored)
    if difference := difference_of((stored.dtype, stored.sizes), (known.dtype, known.sizes)):
        raise ArchiveError(f"{where}: {name!r} differs from a previous file: {difference}")
