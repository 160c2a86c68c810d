"""Find the weights in a `.pt2` file, or in a folder of stages."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fxpress._distributed.checkpoint.boxes import Extent
from fxpress._distributed.checkpoint.tensor_files import in_file
from fxpress._distributed.checkpoint.weights import (
    Place,
    Stored,
    Weights,
    add,
    charge_repeats,
    is_dense,
    whole,
)
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.manifest import read_manifest
from fxpress._distributed.stages.save import MANIFEST
from fxpress._files.archive.contents import Payload, read_config, read_values, views_of
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.remote_archive import RemoteArchive
from fxpress._files.archive.replacing import place_of
from fxpress._files.archive.storages import View, bytes_needed
from fxpress._files.archive.tensor_file import TensorFile
from fxpress._files.archive.weight_files import difference_of
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.format.weights_location import is_file_name
from fxpress._files.remote.ranges import Checked, File
from fxpress._files.remote.remote_file import AnyPath, RemoteFile, read_path
from fxpress._files.serde.limits import Budget, Limits


class ReaderOptions(NamedTuple):
    """Options of a reader; see `ArchiveReader`."""

    model: str = names.MODEL
    allow_pickle: bool = False
    limits: Limits | Budget | None = None  # a Budget limits all files of a checkpoint together
    opened: RemoteArchive | None = None  # the archive to read, if it is at a URL and already open


def add_program(weights: Weights, path: AnyPath, options: ReaderOptions) -> None:
    """Add the weights of a `.pt2` file to `weights`."""
    opened = options.opened
    file = weights.files.file(path, None if opened is None else opened.file)
    _add_file(weights, file, options)


def _add_file(weights: Weights, file: File, options: ReaderOptions) -> None:
    with _archive_of(file, options) as archive:
        try:
            _add_weights(weights, file, archive, options)
        except ArchiveError as error:
            raise _naming(file.path, error) from None


def _archive_of(file: File, options: ReaderOptions) -> PT2ArchiveReader:
    if isinstance(file, RemoteFile):
        return RemoteArchive(file, options.limits) if options.opened is None else options.opened
    raw = file.raw()
    raw.seek(0)
    try:
        return PT2ArchiveReader(raw, limits=options.limits)
    except ArchiveError as error:
        raise _naming(file.path, error) from None


def _naming(path: AnyPath, error: ArchiveError) -> ArchiveError:
    text = str(error)
    return error if text.startswith(str(path)) else type(error)(f"{path}: {text}")


def _add_weights(
    weights: Weights, file: File, archive: PT2ArchiveReader, options: ReaderOptions
) -> None:
    if archive.find(f"{names.WEIGHTS_DIR}{options.model}.pt") is not None:
        raise ArchiveError("the weights are of an older format: load the program, and save it")
    config = read_config(archive, names.weights_config_record(options.model))
    load_options = Options("cpu", allow_pickle=options.allow_pickle, progress=False)
    place = names.weights_file_record(options.model)
    if archive.find(place) is not None:
        text = archive.read_string(place)
        weights.facts.append([file.path.name, file.size, text])
        views = views_of([each for each in config if not each.is_pickled], "", load_options)
        _add_external(weights, file.path, text, views, archive.budget)
        return
    weights.facts.append([file.path.name, file.size])
    plain = [each for each in config if not each.is_pickled]
    views = views_of(plain, names.WEIGHTS_DIR, load_options)
    for payload in config:
        view = views.get(payload.name)
        read = functools.partial(_read_in_full, file, archive, payload, options, load_options)
        if view is None:
            stored, identity = _pickled(archive, payload, load_options, read)
        else:
            stored, identity = _plain(file, archive, payload.name, view, read)
            charge_repeats(payload.name, stored, _bytes_from_offset(view), archive.budget)
        weights.facts.append([payload.name, *identity])
        add(weights, payload.name, stored, str(file.path))


def _bytes_from_offset(view: View) -> int:
    """Return how many bytes a view spans in its record, from its first element to its last."""
    return int(bytes_needed(view) - view.offset * view.dtype.itemsize)


def _plain(
    file: File, archive: PT2ArchiveReader, name: str, view: View, read: Place
) -> tuple[Stored, tuple[Any, ...]]:
    """Describe a tensor in a record; also return values that identify the tensor's content.

    `read` reads the tensor in full if the record is compressed or empty.
    """
    record = archive.record(view.record)
    needed = bytes_needed(view)
    identity = (record.crc, record.size, view.offset, view.strides)
    if record.size == 0 or record.is_deflated:  # the file does not contain the plain elements
        return whole(view.dtype, view.sizes, lambda: read), identity
    if needed > record.size:
        raise ArchiveError(
            f"{name!r} needs {needed} bytes of record {view.record!r}, which has {record.size}"
        )
    item = view.dtype.itemsize
    size = _bytes_from_offset(view)
    is_whole = view.offset == 0 and size == record.size and is_dense(view.sizes, view.strides)

    def find() -> Extent:
        begin = record.offset
        if isinstance(archive, RemoteArchive):  # begin_of, unlike `offset`, sends a request
            begin = archive.begin_of(view.record)
        part = Checked(file, begin, record.size, record.crc, f"record {view.record!r}")
        begin += view.offset * item
        return Extent(file, begin, view.dtype, view.strides, part, is_whole)

    return whole(view.dtype, view.sizes, find), identity


def _read_in_full(
    file: File,
    before: PT2ArchiveReader,
    payload: Payload,
    options: ReaderOptions,
    load_options: Options,
) -> torch.Tensor:
    """Read a tensor in full from the archive `before`, which is reopened unless it is at a URL."""
    with before if isinstance(before, RemoteArchive) else _archive_of(file, options) as archive:
        try:
            values = read_values(archive, [payload], names.WEIGHTS_DIR, load_options)
        except ArchiveError as error:
            raise _naming(file.path, error) from None
    found: torch.Tensor = values[payload.name]
    return found


def _pickled(
    archive: PT2ArchiveReader, payload: Payload, load_options: Options, read: Place
) -> tuple[Stored, tuple[Any, ...]]:
    """Describe a tensor of a custom class; unpickle it to find its dtype and sizes."""
    record = archive.record(names.WEIGHTS_DIR + payload.record)
    value = read_values(archive, [payload], names.WEIGHTS_DIR, load_options)[payload.name]
    if not isinstance(value, torch.Tensor):
        raise ArchiveError(f"{payload.name!r} is a {type(value).__name__}, expected a tensor")
    return whole(value.dtype, tuple(value.shape), lambda: read), (record.crc, record.size)


def _add_external(
    weights: Weights, path: AnyPath, text: str, views: dict[str, View], budget: Budget
) -> None:
    """Add weights that are in a safetensors file next to the archive."""
    if not text:
        raise ArchiveError("the program was saved without its weights")
    name, number = place_of(text)
    real = Path(os.path.realpath(path)) if isinstance(path, Path) else path
    file = TensorFile(weights.files.file(real.with_name(name)), budget)
    file.check_number(number, "checkpoint")
    path_of_weights = str(file.file.path)
    for key, view in views.items():
        stored = in_file(file, key)
        found, wanted = (stored.dtype, stored.sizes), (view.dtype, tuple(view.sizes))
        if difference := difference_of(found, wanted, f" in {path_of_weights}, and "):
            raise ArchiveError(f"{key!r} differs: {difference} in the program")
        add(weights, key, stored, path_of_weights)


class StageFile(NamedTuple):
    """The path of a stage's file, and the size that the manifest states for this file."""

    path: AnyPath
    size: int  # bytes


def stage_files(folder: AnyPath, limits: Limits | Budget | None) -> list[StageFile]:
    """Return the files that are listed in a folder's manifest, in the order of the stages."""
    path = folder / MANIFEST
    data = read_path(path)
    try:
        stages = read_manifest(data, Budget.of(limits, len(data))).stages
        return [StageFile(_file_in(folder, each.file), each.file_bytes) for each in stages]
    except (StageError, ValueError) as error:
        raise ArchiveError(f"{path} is damaged: {error}") from None


def _file_in(folder: AnyPath, name: str) -> AnyPath:
    if not is_file_name(name, ".pt2"):
        raise ValueError(f"expected the name of a .pt2 file, without a path, found {name!r}")
    return folder / name


def add_stages(weights: Weights, folder: AnyPath, options: ReaderOptions) -> None:
    """Add the weights of all stages in a folder; the first stage with a weight provides it."""
    options = options._replace(limits=Budget.of(options.limits, 0))
    stages = stage_files(folder, options.limits)
    files = [weights.files.file(path) for path, _ in stages]
    found = weights.files.each(lambda file: file.size, files)
    for file, size, (path, wanted) in zip(files, found, stages, strict=True):
        if size != wanted:
            raise ArchiveError(f"{path} has {size} bytes; the manifest expects {wanted}")
        _add_file(weights, file, options)
