"""Read the records of an archive as storages, and create tensors as views of them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from fxpress import _native
from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.progress import reporting
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader, Target
from fxpress._files.errors import ArchiveError, OutOfMemoryError, named_lack_of_memory
from fxpress._files.tensors.transfer import Part, addresses, to_device, upload
from fxpress._torch import serde as compat
from fxpress._torch.aten import allocate_bytes, make_views, storage_numbers, storages_of

_CPU = torch.device("cpu")
_ALIGNMENT = 16  # bytes of an element of the largest dtype
_PROCESS = os.getpid()


class View(NamedTuple):
    """A tensor as a view of the storage in `record`."""

    record: str
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int  # in elements
    requires_grad: bool
    is_parameter: bool
    device: torch.device  # the device to which the tensor is loaded


def view_of(
    name: str, record: str, is_parameter: bool, meta: tuple[Any, ...] | None, options: Options
) -> View:
    """Return the view that `meta` in a payload config describes; ArchiveError if it is invalid."""
    if meta is None:
        raise ArchiveError(f"{name!r} in record {record!r} does not have metadata")
    code, sizes, strides, offset, requires_grad, device, index = meta
    dtype = compat.DTYPES.get(code)
    if dtype is None:
        raise ArchiveError(f"{name!r} in record {record!r}: unknown dtype {code}")
    try:
        place = options.device(device, index)
    except RuntimeError as e:
        raise ArchiveError(f"{name!r} in record {record!r}: {e}") from None
    return View(record, dtype, sizes, strides, offset, requires_grad, is_parameter, place)


def bytes_needed(view: View) -> int:
    """Return how many bytes the storage of a view needs; ArchiveError for an invalid view."""
    needed = _native.bytes_needed(view.sizes, view.strides, view.offset, view.dtype.itemsize)
    if needed is None:
        raise ArchiveError(
            f"record {view.record!r}: expected non-negative sizes and strides of a tensor, found "
            f"sizes {view.sizes}, strides {view.strides}, offset {view.offset}"
        )
    return needed


def bytes_by_record(views: Iterable[View]) -> dict[str, int]:
    """Return record -> the bytes that the storage of its views needs, in the order of the views."""
    needed: dict[str, int] = {}
    for view in views:
        needed[view.record] = max(needed.get(view.record, 0), bytes_needed(view))
    return needed


@contextlib.contextmanager
def fork_safe_kernels() -> Iterator[None]:
    """Use one thread for torch's kernels in a forked child.

    OpenMP's threads exist only in the parent, so a kernel in the child waits for them forever.
    """
    threads = torch.get_num_threads()
    if os.getpid() == _PROCESS or threads == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _empty(record: str, size: int, device: str) -> torch.Tensor:
    try:
        return torch.empty(size, dtype=torch.uint8, device=device)
    except RuntimeError as e:
        raise OutOfMemoryError(f"record {record!r} with {size} bytes: {e}") from None


def _expect_device(device: torch.device) -> None:
    """Raise UnsupportedError for a device that this process cannot use."""
    if device.type in ("cpu", "meta"):
        return
    try:
        allocate_bytes([1], device)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as e:
        raise UnsupportedError(
            f"the file has tensors on {str(device)!r}, which this process cannot use ({e}): "
            "pass map_location to load them to another device"
        ) from e


class _Storages:
    """The storages of records as uint8 tensors. `position` adds a record; `finish` reads all."""

    def __init__(self, archive: PT2ArchiveReader, options: Options) -> None:
        self._archive = archive
        self._options = options
        self._mapped = archive.mapped() if options.mmap and options.load_weights else None
        self._positions: dict[str, int] = {}  # record -> position
        self._made: list[torch.Tensor | None] = []  # by position; None: `finish` reads the record
        self._devices: list[torch.device] = []
        self._reading: dict[int, tuple[str, int]] = {}  # position -> (record, size), for `finish`
        self._bytes_needed: dict[str, int] | None = None  # record -> bytes; computed on first use

    def position(self, view: View, all_views: Mapping[str, View]) -> int:
        """Return the index of a view's storage in the result of `finish`."""
        known = self._positions.get(view.record)
        if known is not None:
            return known
        self._made.append(self._make(view, all_views))
        self._devices.append(view.device)
        self._positions[view.record] = len(self._made) - 1
        return len(self._made) - 1

    def _make(self, view: View, all_views: Mapping[str, View]) -> torch.Tensor | None:
        name = view.record
        record = self._archive.record(name)
        size = record.size
        if size % view.dtype.itemsize:
            raise ArchiveError(
                f"Record {name}: size {size} is not a multiple of element size "
                f"{view.dtype.itemsize} for dtype {view.dtype}"
            )
        if size == 0:  # torch writes tensors without memory as empty records, and reads zeros
            if self._bytes_needed is None:
                self._bytes_needed = bytes_by_record(all_views.values())
            size = self._bytes_needed[name]
            device = "cpu" if self._options.load_weights else "meta"
            if device == "cpu":
                self._archive.budget.charge(size, f"record {name!r}, which is read as zeros")
            return _empty(name, size, device).zero_()
        if not self._options.load_weights:
            return _empty(name, size, "meta")
        if record.is_deflated:
            data = bytearray(self._archive.read_bytes(name))
            return torch.frombuffer(data, dtype=torch.uint8)
        if self._mapped is not None and record.offset % _ALIGNMENT == 0:
            part = self._mapped[record.offset : record.offset + size]
            return torch.empty(0, dtype=torch.uint8, device="cpu").set_(part, 0, (size,), (1,))
        self._reading[len(self._made)] = name, size
        return None

    def finish(self) -> list[torch.Tensor]:
        """Read the records that are not read yet; return all storages, on the views' devices."""
        if not self._options.load_weights:
            return self._read()
        for device in set(self._devices):
            _expect_device(device)
        storages = self._read()
        on_host = [i for i, storage in enumerate(self._made) if storage is not None]
        for device in {self._devices[i] for i in on_host} - {_CPU}:
            chosen = [i for i in on_host if self._devices[i] == device]
            moved = to_device([storages[i] for i in chosen], device)
            for i, storage in zip(chosen, moved, strict=True):
                storages[i] = storage
        return storages

    def _read(self) -> list[torch.Tensor]:
        """Read the records; return all storages. The storages from `_make` are still on the CPU."""
        by_device: dict[torch.device, list[int]] = {}
        for i in self._reading:
            by_device.setdefault(self._devices[i], []).append(i)
        storages: dict[int, torch.Tensor] = {}
        total = sum(size for _, size in self._reading.values())
        with reporting(self._options.progress, "loading", total) as bar:
            for device, positions in by_device.items():
                records = [self._reading[i] for i in positions]
                with _native.GcPause(), named_lack_of_memory(f"{len(records)} records"):
                    made, addresses = allocate_bytes([size for _, size in records], device)
                if device.type in ("cpu", "meta"):
                    targets = [
                        Target(name, 0, size, address)
                        for (name, size), address in zip(records, addresses, strict=True)
                    ]
                    self._archive.read_into(targets, bar)
                else:
                    self._upload(records, made, bar)
                storages.update(zip(positions, made, strict=True))
        return [storages[i] if storage is None else storage for i, storage in enumerate(self._made)]

    def _upload(self, records: list[tuple[str, int]], made: list[torch.Tensor], bar: Any) -> None:
        """Read records through host buffers of bounded size into the device tensors `made`."""

        def fill(parts: list[Part], buffer: torch.Tensor) -> None:
            targets = [
                Target(records[part.position][0], part.start, part.size, address)
                for part, address in zip(parts, addresses(buffer, parts), strict=True)
            ]
            self._archive.read_into(targets, bar)

        upload(made, fill)


@fork_safe_kernels()
def read_tensors(
    archive: PT2ArchiveReader, views: Mapping[str, View], options: Options
) -> dict[str, torch.Tensor]:
    """Return name -> tensor. Tensors of a record share a storage. An empty record means zeros."""
    storages = _Storages(archive, options)
    with _native.GcPause():
        planned = [(storages.position(view, views), *view[:-1]) for view in views.values()]
    made = storages.finish()
    with _native.GcPause():
        return dict(zip(views, make_all(made, planned), strict=True))


def on_one_storage(values: list[torch.Tensor], kept: int) -> list[torch.Tensor]:
    """Rebuild `values` as views of their largest storage; copy the first `kept` values into it."""
    numbers = storage_numbers(values)
    if -1 in numbers:
        raise ArchiveError("the archive is damaged: a value on a shared storage is not a tensor")
    if len(values) < 2:
        return values
    sizes = [-1 if value.is_meta else value.untyped_storage().nbytes() for value in values]
    base = max(range(len(values)), key=lambda i: (sizes[i], i))
    planned = [
        (
            *(0, "a shared storage", value.dtype, value.shape, value.stride()),
            *(value.storage_offset(), value.requires_grad, isinstance(value, torch.nn.Parameter)),
        )
        for value in values
    ]
    made = make_all(storages_of([values[base]]), planned)
    for i in range(kept):
        if not values[i].is_meta and numbers[i] != numbers[base]:
            copy_values(made[i], values[i])
    return made


def copy_values(target: torch.Tensor, value: torch.Tensor) -> None:
    """Copy `value` to `target`, even if `target` has dimensions with stride 0."""
    if target.numel() == 0:
        return
    index = distinct_elements(target)
    with torch.no_grad():
        target[index].copy_(value[index])


def distinct_elements(tensor: torch.Tensor) -> tuple[slice, ...]:
    """Return an index that selects one of the equal elements of each dimension with stride 0."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return tuple(slice(0, 1 if step == 0 else n) for n, step in pairs)


def make_all(storages: list[torch.Tensor], planned: list[tuple[Any, ...]]) -> list[torch.Tensor]:
    """Return `make_views(storages, planned)`; ArchiveError if a view exceeds its storage."""
    try:
        return make_views(storages, planned)
    except (ValueError, TypeError) as e:
        raise ArchiveError(f"the archive is damaged: {e}") from None
