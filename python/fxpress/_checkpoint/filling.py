"""Write a `.pt2` file that is another one with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from fxpress._archive import names
from fxpress._archive.contents import read_config, views_of
from fxpress._archive.errors import ArchiveError
from fxpress._archive.load_options import Options
from fxpress._archive.reader import PT2ArchiveReader
from fxpress._archive.storages import View, bytes_by_record, make_all
from fxpress._archive.weight_files import copy_values
from fxpress._archive.writer import PT2ArchiveWriter, Stored
from fxpress._checkpoint.weights import Weights
from fxpress._errors import UnsupportedError
from fxpress._serde.limits import Limits
from fxpress._torch import serde as compat


def fill(template: Path, weights: Weights, target: Path, limits: Limits | None) -> None:
    """Write a file with the graph of a program and the weights of a checkpoint.

    The records are copied as they are, but for those of weights. A storage is made, filled and
    written, one after another.

    Args:
        template: the program; its weights need not be in it.
        weights: the checkpoint, which may have more names.
        target: the file, which is replaced when it is complete.
        limits: the limits on the cost of reading the program.

    Raises:
        OSError: a file cannot be read or written.
        fxpress.ArchiveError: a file is damaged, or the template has no program.
        fxpress.LimitError: reading the program would cost more than the limits allow.
        fxpress.SerializeError: a weight is missing, or has another shape or dtype.
        fxpress.UnsupportedError: a weight of the program is pickled.
    """
    with PT2ArchiveReader(template, limits=limits) as archive:
        views, config_record = _views(archive)
        sources = {name: _source(name, view, views, weights) for name, view in views.items()}
        writer = PT2ArchiveWriter(target)
        try:
            for record in archive.get_file_names():
                if record == config_record:
                    _write_storages(writer, views, sources, weights)
                    writer.write_bytes(record, archive.read_bytes(record))
                elif not record.startswith(names.WEIGHTS_DIR) and not writer.has_record(record):
                    writer.write_bytes(record, archive.read_bytes(record))
            writer.complete()
        except BaseException:
            writer.abandon()
            raise


def _views(archive: PT2ArchiveReader) -> tuple[dict[str, View], str]:
    """Return the weights of the program in an archive, and the record that describes them."""
    models = names.models_in(archive.get_file_names())
    if models != [names.MODEL]:
        raise ArchiveError(f"a file with the program {names.MODEL!r} alone is filled, not {models}")
    record = names.weights_config_record(names.MODEL)
    config = read_config(archive, record)
    for payload in config:
        if payload.is_pickled:
            raise UnsupportedError(f"{payload.name!r} of the program is pickled: it is not filled")
    return views_of(config, names.WEIGHTS_DIR, Options("cpu")), record


def _source(
    name: str, view: View, views: Mapping[str, View], weights: Weights
) -> str:
    """Return the name of the tensor of a checkpoint that a weight gets its value from.

    A weight that has two names in the program may have one of them in the checkpoint.
    """
    found = name
    if name not in weights.tensors:
        others = (
            other
            for other, its in views.items()
            if other in weights.tensors and its[:5] == view[:5]  # all but what tensors are like
        )
        found = next(others, name)
    stored = weights.tensors.get(found)
    if stored is None:
        raise compat.SerializeError(f"there is no value for {name!r}")
    if (stored.dtype, stored.sizes) != (view.dtype, tuple(view.sizes)):
        raise compat.SerializeError(
            f"the value for {name!r} is {stored.dtype}{list(stored.sizes)} instead of "
            f"{view.dtype}{list(view.sizes)}"
        )
    return found


def _write_storages(
    writer: PT2ArchiveWriter,
    views: Mapping[str, View],
    sources: Mapping[str, str],
    weights: Weights,
) -> None:
    by_record: dict[str, list[str]] = {}
    for name, view in views.items():
        by_record.setdefault(view.record, []).append(name)
    for record, size in bytes_by_record(views.values()).items():
        storage = torch.zeros(size, dtype=torch.uint8)  # elements that no tensor sees are zeros
        planned = [(0, *views[name][:-1]) for name in by_record[record]]
        made = make_all([storage], planned)
        for name, tensor in zip(by_record[record], made, strict=True):
            _fill(tensor.detach(), weights, sources[name])
        if size == 0:
            writer.write_bytes(record, b"")
        else:
            writer.write_memory([Stored(record, size, 0, storage.data_ptr(), size)])


def _fill(tensor: torch.Tensor, weights: Weights, name: str) -> None:
    repeats = any(n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    if repeats:  # elements share a place, into which one of them is written
        copy_values(tensor, weights.read(name))
    else:
        weights.read(name, tensor)
