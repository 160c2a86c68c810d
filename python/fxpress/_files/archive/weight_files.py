"""Write weights to a safetensors sidecar file, read them, or create them on the meta device."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import torch

from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.progress import Progress, reporting
from fxpress._files.archive import storages as archive_storages
from fxpress._files.archive import tensors
from fxpress._files.archive.files import AtomicFile
from fxpress._files.archive.folders import short
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.payloads import Config, check_state
from fxpress._files.archive.replacing import place_of
from fxpress._files.archive.tensor_file import TensorFile, write_tensors
from fxpress._files.archive.tensors import without_lazy_bits
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.format.weights_location import Sidecar
from fxpress._files.remote.ranges import Files
from fxpress._files.serde.limits import Budget
from fxpress._torch import serde as compat
from fxpress._torch.aten import storage_numbers

_DIGITS = 16  # digits of the save's random number in the name of a sidecar file
Form: TypeAlias = tuple[torch.dtype, tuple[int, ...]]  # dtype and sizes of a tensor


def describe(state_dict: Mapping[str, Any]) -> Config:
    """Return the config of weights that are not written into the archive."""
    groups, _ = tensors.group_by_storage(_plain(state_dict))
    return [
        (
            name,
            names.payload(names.WEIGHT, number),
            value,
            isinstance(value, torch.nn.Parameter),
            False,
        )
        for number, group in enumerate(groups)
        for name, value in group.tensors.items()
    ]


def _plain(state_dict: Mapping[str, Any]) -> Mapping[str, torch.Tensor]:
    check_state(state_dict)
    for name, tensor in state_dict.items():
        if tensors.is_of_subclass(tensor):
            raise UnsupportedError(
                f"{name!r} is a {type(tensor).__name__}, which is stored in the archive only: save "
                'with weights="inline"'
            )
    return state_dict


def write_external(
    target: Path,
    model: str,
    state_dict: Mapping[str, Any],
    report: Callable[[int], None] | None = None,
) -> tuple[str, AtomicFile]:
    """Write the weights to a new file next to `target`; return (record that names it, file)."""
    plain = _plain(state_dict)
    # Archive and sidecar contain this number, so that a load never combines files of two saves.
    number = secrets.token_hex(16)
    suffix = "" if model == names.MODEL else f".{model}"
    stem = short(f"{target.name.removesuffix('.pt2')}{suffix}")
    name = f"{stem}.{number[:_DIGITS]}.safetensors"
    file = None
    try:
        file = AtomicFile(target.with_name(name), target)
        write_tensors(file.descriptor, plain, number, report)
    except BaseException as e:
        if file is not None:
            file.discard()
        if isinstance(e, OSError):
            raise OSError(e.errno, e.strerror, str(target.with_name(name))) from None
        raise
    return Sidecar(name, number).text(), file


def read(
    record: str, views: Mapping[str, archive_storages.View], options: Options, budget: Budget
) -> dict[str, torch.Tensor]:
    """Return the weights in the file that `record` names; "" means that there is no file."""
    if not options.load_weights:
        return assemble(views, None, budget)
    if not record:
        raise ArchiveError(
            "the program was saved without its weights: load it with load_weights=False, and pass "
            "the weights to fxpress.state.load_into"
        )
    name, number = place_of(record)
    if options.path is None:
        raise ArchiveError(f"the weights are in {name!r} next to the archive: load it from a path")
    path = Path(os.path.realpath(options.path)).with_name(name)
    with open_weights(path, budget, number) as get:
        return assemble(views, get, budget, options.progress)


@contextlib.contextmanager
def open_weights(
    path: Path, budget: Budget, number: str | None = None
) -> Iterator[Callable[[str], torch.Tensor]]:
    """Yield a function: name -> tensor. ArchiveError if `number` is not None and not the file's."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    with contextlib.closing(Files()) as files:
        file = TensorFile(files.file(path), budget)
        if number is not None:
            file.check_number(number, "archive")
        yield file.read


@archive_storages.fork_safe_kernels()
def assemble(
    views: Mapping[str, archive_storages.View],
    get: Callable[[str], torch.Tensor] | None,
    budget: Budget,
    progress: Progress = False,
) -> dict[str, torch.Tensor]:
    """Create the tensors of views with values from `get`; if `get` is None, create them on meta."""
    values = {} if get is None else {name: fitting(name, v, get) for name, v in views.items()}
    needed = archive_storages.bytes_by_record(views.values())
    positions = {record: position for position, record in enumerate(needed)}
    if get is not None:
        budget.charge(sum(needed.values()), "the storages of the weights")
    devices = {view.record: view.device for view in views.values()}
    storages = [
        # Zeros, because a later save writes the entire storage, also bytes that no tensor covers.
        torch.zeros(size, dtype=torch.uint8, device="meta" if get is None else devices[record])
        for record, size in needed.items()
    ]
    planned = [(positions[view.record], *view[:-1]) for view in views.values()]
    made = dict(zip(views, archive_storages.make_all(storages, planned), strict=True))
    if get is not None:
        check_shared([*views], [*made.values()], [*values.values()])
    with reporting(progress, "loading", sum(map(size_of, values.values()))) as report:
        for name, value in values.items():
            archive_storages.copy_values(made[name], value)
            if report is not None:
                report(size_of(value))
    return made


def size_of(value: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; a sparse tensor counts as if it were dense."""
    return int(value.numel() * value.element_size())


def overlapping(tensors: Sequence[torch.Tensor]) -> list[list[int]]:
    """Group the tensors that may share elements, by position; omit tensors of subclasses."""
    numbers = storage_numbers(list(tensors))
    shared = {number for number, count in Counter(numbers).items() if count > 1 and number >= 0}
    extents = []
    for position, (number, tensor) in enumerate(zip(numbers, tensors, strict=True)):
        if number in shared and tensor.numel():
            begin = tensor.storage_offset() * tensor.element_size()
            extents.append((number, begin, _end(tensor), position))
    groups: list[list[int]] = []
    storage, end = -1, 0
    for number, begin, stop, position in sorted(extents):
        if number == storage and begin < end:
            groups[-1].append(position)
            end = max(end, stop)
        else:
            groups.append([position])
            storage, end = number, stop
    return [sorted(group) for group in groups if len(group) > 1]


def _end(tensor: torch.Tensor) -> int:
    """Return the offset in bytes at which a tensor ends in its storage."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((n - 1) * step for n, step in pairs)
    return int((last + 1) * tensor.element_size())


def check_shared(
    names: Sequence[str], targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]
) -> None:
    """Raise SerializeError if two `targets` share memory for which their `values` differ."""
    for group in overlapping(targets):
        _check_group(names, targets, {position: values[position] for position in group})


def fill_shared(
    names: Sequence[str], targets: Sequence[torch.Tensor], read: Callable[[int, torch.Tensor], None]
) -> set[int]:
    """Call `read(position, tensor)` to fill targets that share elements; return their positions."""
    done: set[int] = set()
    for group in overlapping(targets):
        if len({names[position] for position in group}) == 1:
            continue
        values = {
            position: torch.empty_like(targets[position], memory_format=torch.contiguous_format)
            for position in group
        }
        for position, value in values.items():
            read(position, value)
        _check_group(names, targets, values)
        for position, value in values.items():
            archive_storages.copy_values(targets[position], value)
        done.update(group)
    return done


def _check_group(
    names: Sequence[str], targets: Sequence[torch.Tensor], values: Mapping[int, torch.Tensor]
) -> None:
    pair = _differing([targets[position] for position in values], [*values.values()])
    if pair is not None:
        one, other = (names[[*values][each]] for each in pair)
        raise compat.SerializeError(
            f"{one!r} and {other!r} share memory: expected equal values, got different ones"
        )


def _differing(targets: list[torch.Tensor], values: list[torch.Tensor]) -> tuple[int, int] | None:
    """Return the positions of two values that differ in a shared element of their targets."""
    positions = range(len(targets))
    views = {(each.dtype, each.storage_offset(), each.shape, each.stride()) for each in targets}
    if len(views) == 1:
        index = archive_storages.distinct_elements(targets[0])
        first = values[0][index]
        found = (each for each in positions if not _has_same_bits(first, values[each][index]))
        return next(((0, each) for each in found), None)
    # Allocate only the bytes of `targets`. A start at a multiple of 16 fits elements of any dtype.
    start = min(each.storage_offset() * each.element_size() for each in targets) // 16 * 16
    storage = torch.zeros(-(-(max(map(_end, targets)) - start) // 16) * 16, dtype=torch.uint8)
    parts = [
        storage.view(each.dtype).as_strided(
            each.shape, each.stride(), each.storage_offset() - start // each.element_size()
        )
        for each in targets
    ]

    def changed(one: int) -> bool:
        index = archive_storages.distinct_elements(parts[one])
        return not _has_same_bits(parts[one][index], values[one][index])

    def changes(one: int, other: int) -> bool:
        archive_storages.copy_values(parts[one], values[one])
        archive_storages.copy_values(parts[other], values[other])
        return changed(one)

    for position in positions:
        archive_storages.copy_values(parts[position], values[position])
    one = next(filter(changed, positions), None)
    return None if one is None else next((one, o) for o in positions if changes(one, o))


def _has_same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta or other.is_meta:
        return True
    is_one = one.device == other.device and one.data_ptr() == other.data_ptr()
    if is_one and one.stride() == other.stride():
        return True
    pair = _bytes(one), _bytes(other.to(one.device))
    if all(each.numel() % 8 == 0 and each.storage_offset() % 8 == 0 for each in pair):
        pair = pair[0].view(torch.int64), pair[1].view(torch.int64)  # fewer elements to compare
    return bool(torch.equal(*pair))


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    dense = without_lazy_bits(tensor.detach()).contiguous()
    flat = dense.as_strided((dense.numel(),), (1,))  # the stride of one element is arbitrary
    return flat.view(torch.uint8)


def fitting(name: str, target: Any, get: Callable[[str], torch.Tensor]) -> torch.Tensor:
    """Return the value of the weight `name`; SerializeError if it is missing or does not fit."""
    sizes = tuple(target.sizes if isinstance(target, archive_storages.View) else target.shape)
    try:
        value = get(name)
    except KeyError:
        raise compat.SerializeError(f"expected a value for {name!r}, found none") from None
    if not isinstance(value, torch.Tensor):
        raise compat.SerializeError(
            f"expected the value for {name!r} to be a tensor, got a {type(value).__name__}"
        )
    check_fits(name, (value.dtype, tuple(value.shape)), (target.dtype, sizes))
    return value


def check_fits(name: str, found: Form, wanted: Form) -> None:
    """Raise SerializeError unless a value's dtype and sizes, `found`, equal `wanted`."""
    if difference := difference_of(found, wanted, " instead of "):
        raise compat.SerializeError(f"the value for {name!r} is {difference}")


def difference_of(found: Form, wanted: Form, between: str = ", expected ") -> str:
    """Return the dtypes and sizes of `found` and `wanted` as text; "" if they are equal."""
    if found == wanted:
        return ""
    return between.join(f"{dtype}{list(sizes)}" for dtype, sizes in (found, wanted))
