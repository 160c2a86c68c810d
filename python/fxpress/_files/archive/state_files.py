"""Write tensors to files, read tensors from files, and load them into programs."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress._base.arguments import check_program
from fxpress._base.observing.progress import Progress, check_progress, reporting
from fxpress._files.archive import payloads
from fxpress._files.archive.contents import join_storages, read_weights
from fxpress._files.archive.files import is_path, source_path
from fxpress._files.archive.load_options import Options, check_location
from fxpress._files.archive.reader import PT2ArchiveReader, retry_if_replaced
from fxpress._files.archive.storages import copy_values, fork_safe_kernels
from fxpress._files.archive.weight_files import check_shared, fitting, open_weights, size_of
from fxpress._files.archive.writer import PT2ArchiveWriter, Replace
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.serde.artifacts import check_values
from fxpress._files.serde.limits import Budget, Limits
from fxpress._files.serde.values import Location
from fxpress._files.tensors.copies import convert_like, on_other_storages
from fxpress._torch import serde as compat
from fxpress._torch.aten import storage_bytes
from fxpress._torch.watching import operation


def _sizes(tensors: Mapping[str, torch.Tensor]) -> dict[str, int]:
    return {"tensors": len(tensors), "bytes": storage_bytes([*tensors.values()])}


@operation("state.write", lambda _, tensors, *__, **___: _sizes(tensors))
def write(
    tensors: Mapping[str, torch.Tensor],
    f: Any,
    *,
    replace: Replace = "whole",
    progress: Progress = None,
) -> None:
    """Write tensors to an archive, with one record for each storage.

    torch has no such function.

    Args:
        tensors: name -> tensor, on any device.
        f: a path, or an object with `write`. At a path, the complete new file replaces the old.
        replace: "whole": replace the file at the path by another; "in_place": write the complete
            new bytes into the file.
        progress: how to show progress, in bytes; see `fxpress.load`.

    Raises:
        AssertionError: a value is not a tensor.
        OSError: the file cannot be written.
        fxpress.SerializeError: a tensor of a subclass cannot be pickled.
        fxpress.UnsupportedError: a tensor is fake, or the schema of this torch has fields that
            fxpress does not support.
        TypeError: an argument is of a wrong type.
        ValueError: `replace` has an unknown value, `f` is closed, or a path has a null character.
        RuntimeError: the path does not name a file.
        ImportError: `progress` needs a package that is not installed.

    Exceptions that `progress` raises are not converted.

    Example:
        >>> from fxpress import state
        >>> state.write(program.state_dict, "state.pt2")
    """
    if not isinstance(tensors, Mapping):
        raise TypeError(
            f"expected `tensors` to be a dict {{name: tensor}}, got a {type(tensors).__name__}"
        )
    payloads.check_state(tensors)
    check_values(tensors)
    check_progress(progress)
    archive = PT2ArchiveWriter(f, replace=replace)
    try:
        total = storage_bytes([*tensors.values()])
        with reporting(progress, "saving", total) as bar, archive.reporting_to(bar):
            config = payloads.write_weights(archive, tensors, compat.DEFAULT_PICKLE_PROTOCOL)
        record = names.weights_config_record(names.MODEL)
        archive.write_bytes(record, payloads.config_bytes(config))
        if shared := payloads.shared_storages(config, []):
            archive.write_string(names.shared_storages_record(names.MODEL), shared)
        archive.complete()
    except BaseException:
        archive.abandon()
        raise
    if isinstance(f, io.IOBase):
        f.seek(0)


@operation("state.read", lambda made, *_, **__: _sizes(made))
@retry_if_replaced
def read(
    f: Any,
    *,
    model: str = names.MODEL,
    map_location: Location = None,
    mmap: bool = False,
    allow_pickle: bool = False,
    check_crc: bool = True,
    limits: Limits | None = None,
    progress: Progress = None,
) -> dict[str, torch.Tensor]:
    """Return the tensors that `write` wrote to an archive, or the state of an archive's program.

    torch has no such function.

    Args:
        f: a path, an open file, or a buffer.
        model: the name of the program.
        map_location: the device for all tensors, or a dict from devices in the file to new devices.
        mmap: read the tensors from the file when they are used, without comparing checksums.
        allow_pickle: unpickle tensors of subclasses, which may run any code.
        check_crc: whether records are compared with their checksums.
        limits: the limits on the cost of reading; None: the defaults of `fxpress.archive.Limits`.
        progress: how to show progress, in bytes; see `fxpress.load`.

    Raises:
        OSError: the file cannot be read.
        fxpress.ArchiveError: the file is damaged; the message names the record.
        fxpress.LimitError: reading the file would exceed the limits.
        fxpress.SerializeError: an object in the file needs `allow_pickle`.
        torch.OutOfMemoryError: a device does not have enough memory for the tensors.
        TypeError: an argument is of a wrong type.
        ValueError: `f` is closed or has a null character, or `mmap` is set, but `f` is not a path.
        RuntimeError: torch does not know a device in `map_location`.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> from fxpress import state
        >>> state.write({"a": torch.ones(2)}, "tensors.pt2")
        >>> state.read("tensors.pt2")
        {'a': tensor([1., 1.])}
    """
    check_location(map_location)
    check_progress(progress)
    path = source_path(f, mmap=mmap)
    options = Options(map_location, mmap, True, allow_pickle, check_crc, path, progress)
    with PT2ArchiveReader(f, check_crc=check_crc, limits=limits) as archive:
        found = read_weights(archive, model, options)
        if isinstance(found, bytes):
            raise ArchiveError("the weights are of an older format: load the program, and save it")
        found = dict(found)
        join_storages(archive, model, found, None)
    return found


@contextmanager
def _values(
    source: Any, device: Any, limits: Limits | None, progress: Progress
) -> Iterator[Callable[[str], torch.Tensor]]:
    """Yield a function: name -> tensor. Call it once per name; KeyError for a missing name."""
    # Files are not mapped, because a write of another process would change the values.
    if isinstance(source, Mapping):
        yield source.__getitem__
    elif is_path(source) and os.fsdecode(source).endswith(".safetensors"):
        with open_weights(Path(os.fsdecode(source)), Budget(limits, 0)) as get:
            yield get
    else:  # all tensors are read and checked before the program changes
        yield read(source, map_location=device, limits=limits, progress=progress).pop


@operation("state.load_into", lambda _, ep, *__, **___: _sizes(ep.state_dict))
@fork_safe_kernels()
def load_into(
    ep: ExportedProgram,
    source: Any,
    *,
    device: torch.device | str | None = None,
    limits: Limits | None = None,
    progress: Progress = None,
) -> None:
    """Load new values into the state of a program. torch does not have this function.

    Tensors on the meta device, as after `load(load_weights=False)`, are replaced by new tensors.
    For other tensors, the values are copied into the tensors' memory. Tensors that shared a storage
    before share one afterwards. If a value is rejected, the program is unchanged. If the function
    `progress` raises an exception, values that were copied before remain.

    Args:
        ep: the program.
        source: an archive, a safetensors file, or a mapping from names to tensors. Names that the
            program lacks are ignored.
        device: the device of new tensors; None: the devices of the source's tensors.
        limits: the limits on the cost of reading; None: the defaults of `fxpress.archive.Limits`.
        progress: how to show progress, in bytes; see `fxpress.load`. Reading an archive and copying
            its values are reported separately.

    Raises:
        OSError: the file cannot be read.
        fxpress.ArchiveError: the file is damaged; the message names the record.
        fxpress.LimitError: reading the file, or the program's storages, would exceed the limits.
        fxpress.SerializeError: a value is missing, or its shape or dtype is not the program's; or
            two names that share memory, such as the names of a tied weight, have different values.
        fxpress.UnsupportedError: this torch does not have the dtype of a value.
        torch.OutOfMemoryError: a device does not have enough memory for the tensors.
        TypeError: an argument is of a wrong type.
        ValueError: `source` is closed, or has a null character.
        RuntimeError: torch does not know the device `device`.
        ImportError: `progress` needs a package that is not installed.

    Example:
        >>> from fxpress import state
        >>> fxpress.save(program, "model.pt2")
        >>> loaded = fxpress.load("model.pt2", load_weights=False)
        >>> state.load_into(loaded, program.state_dict)
    """
    check_program(ep, "ep")
    check_location(device)
    check_progress(progress)
    with _values(source, device, limits, progress) as get:
        found = {name: fitting(name, target, get) for name, target in ep.state_dict.items()}
        check_shared([*found], [*ep.state_dict.values()], [*found.values()])
        budget = Budget(limits, storage_bytes([*found.values()]))
        new = _replacements(ep.state_dict, found, device, budget)
        total = sum(map(size_of, found.values()))
        with reporting(progress, "copying", total) as report:
            for name, target in ep.state_dict.items():
                size = size_of(found[name])
                # Each value is freed after its copy, and a new tensor uses memory only once it is
                # written. All old and all new values are therefore never in memory together.
                copy_values(new.get(name, target), found.pop(name))
                if report is not None:
                    report(size)
    ep.state_dict.update(new)


def _replacements(
    state_dict: Mapping[str, torch.Tensor],
    found: Mapping[str, torch.Tensor],
    device: torch.device | str | None,
    budget: Budget,
) -> dict[str, torch.Tensor]:
    """Return name -> new tensor for tensors on meta. The new ones share storages as the old do."""
    without = {name: value for name, value in state_dict.items() if value.device.type == "meta"}
    names_of = {id(value): name for name, value in without.items()}

    def place(value: torch.Tensor) -> Any:
        return found[names_of[id(value)]].device if device is None else device

    def zeros(first: list[torch.Tensor]) -> list[torch.Tensor]:
        size = sum(each.untyped_storage().nbytes() for each in first)
        budget.charge(size, "the storages of the program's state")
        return [
            torch.zeros(each.untyped_storage().nbytes(), dtype=torch.uint8, device=place(each))
            for each in first
        ]

    def alone(value: torch.Tensor) -> torch.Tensor:
        return convert_like(torch.zeros_like(value.detach(), device=place(value)), value)

    made = on_other_storages(list(without.values()), zeros, alone)
    return dict(zip(without, made, strict=True))
