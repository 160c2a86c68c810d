"""Copy a `.pt2` file, and replace its weights by the weights of a checkpoint."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple, TypeAlias

import torch

from fxpress._base.errors import UnsupportedError
from fxpress._distributed.checkpoint.weights import Weights
from fxpress._files.archive.contents import read_config, views_of
from fxpress._files.archive.load_options import Options
from fxpress._files.archive.reader import PT2ArchiveReader
from fxpress._files.archive.storages import View, bytes_by_record, copy_values, make_all
from fxpress._files.archive.weight_files import check_fits, fill_shared
from fxpress._files.archive.writer import PT2ArchiveWriter, Stored
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.serde.limits import Limits
from fxpress._native import RECORDS_OF_WRITER
from fxpress._torch import serde as compat

_Source: TypeAlias = Callable[[torch.Tensor], None]  # fills a tensor with a weight's value


class Filling(NamedTuple):
    """Options of `fill`."""

    # `own(name)` returns the value of a weight that the checkpoint lacks, or raises KeyError. If
    # `own` is None, a weight that the checkpoint lacks is an error.
    own: Callable[[str], torch.Tensor] | None = None
    limits: Limits | None = None  # the limits on the cost of reading a program


def fill(template: Path | io.BytesIO, weights: Weights, target: Path, filling: Filling) -> None:
    """Copy the archive `template` to `target`; replace its weights by a checkpoint's weights."""
    with PT2ArchiveReader(template, limits=filling.limits) as archive:
        views, config_record = _views(archive)
        sources = {
            name: _source(name, view, views, weights, filling) for name, view in views.items()
        }
        writer = PT2ArchiveWriter(target)
        try:
            for record in archive.get_file_names():
                if record == config_record:
                    _write_storages(writer, views, sources)
                    writer.write_bytes(record, archive.read_bytes(record))
                elif not record.startswith(names.WEIGHTS_DIR) and record not in RECORDS_OF_WRITER:
                    writer.write_bytes(record, archive.read_bytes(record))
            writer.complete()
        except BaseException:
            writer.abandon()
            raise


def _views(archive: PT2ArchiveReader) -> tuple[dict[str, View], str]:
    """Return the views of a program's weights, and the name of the record that describes them."""
    models = names.models_in(archive.get_file_names())
    if models != [names.MODEL]:
        raise ArchiveError(f"expected a file with the program {names.MODEL!r} only, found {models}")
    record = names.weights_config_record(names.MODEL)
    config = read_config(archive, record)
    for payload in config:
        if payload.is_pickled:
            raise UnsupportedError(
                f"the weight {payload.name!r} of the program is pickled, so it cannot be replaced"
            )
    return views_of(config, names.WEIGHTS_DIR, Options("cpu")), record


def _source(
    name: str, view: View, views: Mapping[str, View], weights: Weights, filling: Filling
) -> _Source:
    """Return a function that fills the weight `name` from the checkpoint or from `filling.own`."""
    found = name
    if name not in weights.tensors:
        others = (
            other
            for other, its in views.items()
            if other in weights.tensors and its[:5] == view[:5]  # `other` has the same elements
        )
        found = next(others, name)
    stored = weights.tensors.get(found)
    if stored is not None:
        check_fits(name, (stored.dtype, stored.sizes), (view.dtype, tuple(view.sizes)))
        return functools.partial(_fill, weights, found)
    read, own = filling.own, None
    with contextlib.suppress(KeyError):
        own = None if read is None else read(name)
    if read is None or own is None:
        raise compat.SerializeError(f"the weight {name!r} does not have a value")
    check_fits(name, (own.dtype, tuple(own.shape)), (view.dtype, tuple(view.sizes)))
    return lambda tensor: copy_values(tensor, read(name).detach())


def _write_storages(
    writer: PT2ArchiveWriter, views: Mapping[str, View], sources: Mapping[str, _Source]
) -> None:
    by_record: dict[str, list[str]] = {}
    for name, view in views.items():
        by_record.setdefault(view.record, []).append(name)
    for record, size in bytes_by_record(views.values()).items():
        own = by_record[record]
        mine = [(views[name], sources[name]) for name in own]
        _write_storage(writer, record, size, own, mine)


def _write_storage(
    writer: PT2ArchiveWriter,
    record: str,
    size: int,
    own: list[str],
    mine: list[tuple[View, _Source]],
) -> None:
    """Create the storage of a record, fill the weights `own` in it, and write the record."""
    storage = torch.zeros(size, dtype=torch.uint8)  # bytes outside all tensors stay zero
    made = [each.detach() for each in make_all([storage], [(0, *view[:-1]) for view, _ in mine])]
    done = fill_shared(own, made, lambda position, value: mine[position][1](value))
    for position, tensor in enumerate(made):
        if position not in done:
            mine[position][1](tensor)
    if size == 0:
        writer.write_bytes(record, b"")
    else:
        writer.write_memory([Stored(record, size, 0, storage.data_ptr(), size)])


def _fill(weights: Weights, name: str, tensor: torch.Tensor) -> None:
    repeats = any(
        n > 1 and step == 0 for n, step in zip(tensor.shape, tensor.stride(), strict=True)
    )
    if repeats:  # elements that share one memory location get the value of one of them
        copy_values(tensor, weights.read(name))
    else:
        weights.read(name, tensor)
