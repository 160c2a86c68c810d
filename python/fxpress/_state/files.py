"""Tensors in files, and files into programs."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

from fxpress import _torch_compat_serde as compat
from fxpress._archive import names, payloads
from fxpress._archive.contents import read_weights
from fxpress._archive.errors import ArchiveError
from fxpress._archive.files import is_path
from fxpress._archive.options import Options, check_location
from fxpress._archive.reader import PT2ArchiveReader, verify
from fxpress._archive.weight_files import copy_values, fitting, open_weights
from fxpress._archive.writer import PT2ArchiveWriter
from fxpress._serde.values import Location
from fxpress._state.copies import on_other_storages


def write(tensors: Mapping[str, torch.Tensor], f: Any) -> None:
    """Saves tensors in an archive; those that share a storage share it there.

    Args:
        tensors: what is saved, on any device.
        f: a path, which keeps what it has until the file is complete, or an object with `write`.

    Raises:
        AssertionError: there is something else than tensors.
        OSError: the file cannot be written.
    """
    payloads.check_state(tensors)
    archive = PT2ArchiveWriter(f)
    try:
        config = payloads.write_weights(archive, tensors, compat.DEFAULT_PICKLE_PROTOCOL)
        record = names.weights_config_record(names.MODEL)
        archive.write_bytes(record, payloads.config_bytes(config))
        archive.complete()
    except BaseException:
        archive.abandon()
        raise
    if isinstance(f, io.IOBase):
        f.seek(0)


def read(
    f: Any,
    *,
    model: str = names.MODEL,
    map_location: Location = None,
    mmap: bool = False,
    allow_pickle: bool = False,
    check_crc: bool = True,
) -> dict[str, torch.Tensor]:
    """The tensors in an archive: what `write` saved, or the state of a program in it.

    Args:
        f: a path, an open file, or a buffer.
        model: the name of the program.
        map_location, mmap, allow_pickle, check_crc: as for `fxpress.archive.load`.

    Raises:
        OSError: the file cannot be read.
        ArchiveError: it is damaged; the message names the record.
        SerializeError: something in it needs `allow_pickle`.
    """
    check_location(map_location)
    path = os.fspath(f) if is_path(f) else None
    if mmap and path is None:
        raise ValueError("mmap=True maps the file: f has to be a path")
    options = Options(map_location, mmap, True, allow_pickle, check_crc, path)
    with PT2ArchiveReader(f, check_crc=check_crc) as archive:
        found = read_weights(archive, model, options)
    if isinstance(found, bytes):
        raise ArchiveError("the weights are of an older format: load the program, and save it")
    return dict(found)


@contextmanager
def _values(source: Any, device: Any) -> Iterator[Callable[[str], torch.Tensor]]:
    """A function: name -> tensor of a source, KeyError for what is not there."""
    if isinstance(source, Mapping):
        yield source.__getitem__
    elif is_path(source) and Path(source).suffix == ".safetensors":
        with open_weights(Path(source)) as get:
            yield get
    else:
        if is_path(source):
            verify(source)  # what is mapped is not compared with its checksums
        yield read(source, mmap=is_path(source), map_location=device).__getitem__


def load_into(
    ep: ExportedProgram, source: Any, *, device: torch.device | str | None = None
) -> None:
    """Gives the state of a program new values.

    Tensors on the meta device, as `load(load_weights=False)` leaves them, are replaced by tensors
    of their own; others get the values in their memory. Those that share storages go on doing so.
    The program stays as it is when a value is missing or does not fit.

    Args:
        ep: the program.
        source: an archive, a safetensors file, or a mapping from names to tensors, which may have
            more names than the program.
        device: where tensors that are replaced go; None: where those of the source are.

    Raises:
        OSError: the file cannot be read.
        SerializeError: a value is missing, or has another shape or dtype.
    """
    with _values(source, device) as get:
        found = {name: fitting(name, target, get) for name, target in ep.state_dict.items()}
        new = _replacements(ep.state_dict, found, device)
        for name, target in ep.state_dict.items():
            copy_values(new.get(name, target), found[name])
    ep.state_dict.update(new)


def _replacements(
    state_dict: Mapping[str, torch.Tensor],
    found: Mapping[str, torch.Tensor],
    device: torch.device | str | None,
) -> dict[str, torch.Tensor]:
    """Tensors with memory for those that have none, which share storages where those do."""
    without = {name: value for name, value in state_dict.items() if value.device.type == "meta"}
    names_of = {id(value): name for name, value in without.items()}

    def zeros(first: list[torch.Tensor]) -> list[torch.Tensor]:
        return [
            torch.zeros(
                each.untyped_storage().nbytes(),
                dtype=torch.uint8,
                device=found[names_of[id(each)]].device if device is None else device,
            )
            for each in first
        ]

    return dict(zip(without, on_other_storages(list(without.values()), zeros), strict=True))
