"""Read boxes of tensors in files: find the bytes of a box, and copy them into a tensor.

A box is a part of a tensor: an offset and a length in each dimension. In the file, elements that
are not in the box may separate its elements. Such elements are gaps. A box is read in runs. A run
is a range of consecutive bytes with only small gaps, which are read and ignored. The inner
dimensions of the box are within a run; the outer dimensions determine the offsets of the runs.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from fxpress import _native
from fxpress._files.archive.tensor_file import memory_of
from fxpress._files.remote.ranges import Checked, File

_MOST = 1 << 25  # about how many bytes are read before they are copied to the target


class Extent(NamedTuple):
    """The location and layout of a tensor in a file."""

    file: File
    begin: int  # the byte offset of the tensor's first element in the file
    dtype: torch.dtype
    strides: tuple[int, ...]  # in elements
    checked: Checked | None = None  # the checksummed part of the file that contains the tensor
    is_whole: bool = False  # whether the tensor is contiguous and fills `checked`


class _Run(NamedTuple):
    """The layout of the runs of a box. Dimensions are ordered by their strides."""

    span: int  # the number of elements in a run
    outer: tuple[int, ...]  # the dimensions over which runs repeat, the outermost first


def _run(sizes: Sequence[int], strides: Sequence[int], order: Sequence[int], gap: float) -> _Run:
    """Return the layout with the longest runs in which each gap has at most `gap` elements."""
    span = 1
    for position in range(len(order) - 1, -1, -1):
        dim = order[position]
        if sizes[dim] == 1:
            continue
        if strides[dim] - span > gap:
            outer = tuple(d for d in order[: position + 1] if sizes[d] > 1)
            return _Run(span, outer)
        span += (sizes[dim] - 1) * strides[dim]
    return _Run(span, ())


def _parts(
    sizes: Sequence[int], order: Sequence[int], whole: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield (offsets, sizes) of parts of a box of `whole` bytes; a part has about `_MOST` bytes."""
    steps = list(sizes)
    for dim in order:
        if whole <= _MOST:
            break
        one = math.ceil(whole / sizes[dim])
        steps[dim] = max(1, min(sizes[dim], _MOST // one)) if one else sizes[dim]
        whole = one * steps[dim]
    ranges = [range(0, sizes[dim], steps[dim]) for dim in order]
    for begins in itertools.product(*ranges):
        begin, size = [0] * len(sizes), list(sizes)
        for dim, first in zip(order, begins, strict=True):
            begin[dim], size[dim] = first, min(steps[dim], sizes[dim] - first)
        yield tuple(begin), tuple(size)


def read_box(
    extent: Extent, offsets: Sequence[int], sizes: Sequence[int], target: torch.Tensor
) -> None:
    """Copy a box of a stored tensor to `target`; check the checksum of an entire tensor."""
    if 0 in sizes:
        return
    strides, item = extent.strides, extent.dtype.itemsize
    order = sorted(range(len(sizes)), key=lambda dim: -strides[dim])
    first = sum(a * b for a, b in zip(offsets, strides, strict=True))
    run = _run(sizes, strides, order, extent.file.gap / item)
    whole = run.span * math.prod(sizes[dim] for dim in run.outer)
    crc = None
    checked = extent.checked if extent.is_whole else None
    if checked is not None and whole * item == checked.size:
        crc = _native.crc32(b"")
    for begin, part in _parts(sizes, order, whole * item):
        place = first + sum(a * b for a, b in zip(begin, strides, strict=True))
        part_target = target
        for dim, (start, size) in enumerate(zip(begin, part, strict=True)):
            if size != sizes[dim]:
                part_target = part_target.narrow(dim, start, size)
        data = _read_part(extent, place, part, order, part_target)
        if crc is not None:
            memory = memory_of(data)
            crc = _native.crc32_of_both(crc, _native.crc32(memory), len(memory))
    if checked is not None and crc is not None:
        checked.compare(crc)


def _read_part(
    extent: Extent, place: int, sizes: tuple[int, ...], order: Sequence[int], target: torch.Tensor
) -> torch.Tensor:
    """Copy the box that begins at element `place` to `target`; return what was read, with gaps."""
    strides, item = extent.strides, extent.dtype.itemsize
    run = _run(sizes, strides, order, extent.file.gap / item)
    total = run.span * math.prod(sizes[dim] for dim in run.outer)
    in_memory = list(strides)  # the box's strides in `data`, where runs are adjacent
    step = total
    for dim in run.outer:
        step //= sizes[dim]
        in_memory[dim] = step
    is_direct = total == math.prod(sizes) and _takes_bytes(target, extent.dtype, in_memory)
    data = target if is_direct else torch.empty(total, dtype=extent.dtype, device="cpu")
    memory, size = memory_of(data), run.span * item
    starts = [range(0, sizes[dim] * strides[dim], strides[dim]) for dim in run.outer]
    for number, start in enumerate(itertools.product(*starts)):
        begin = extent.begin + (place + sum(start)) * item
        extent.file.read_into(begin, memory[number * size : (number + 1) * size])
    if not is_direct:
        target.copy_(data.as_strided(sizes, in_memory))
    return data


def _takes_bytes(target: torch.Tensor, dtype: torch.dtype, strides: Sequence[int]) -> bool:
    """Return whether elements with these strides can be read directly into `target`'s memory."""
    return (
        type(target) is torch.Tensor
        and target.dtype is dtype
        and target.device.type == "cpu"
        and target.layout is torch.strided
        and target.is_contiguous()
        and not (target.is_conj() or target.is_neg())
        and all(
            size == 1 or a == b
            for size, a, b in zip(target.shape, target.stride(), strides, strict=True)
        )
    )


def strides_of(sizes: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor of these sizes."""
    strides, step = [], 1
    for size in reversed(sizes):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))
