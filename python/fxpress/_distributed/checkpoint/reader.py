"""`ArchiveReader` reads weights in files for `torch.distributed.checkpoint.load`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from fxpress._distributed.checkpoint.boxes import Extent
from fxpress._distributed.checkpoint.programs import ReaderOptions
from fxpress._distributed.checkpoint.sources import main_file, read_weights
from fxpress._distributed.checkpoint.values import pickled
from fxpress._distributed.checkpoint.weights import Place, Weights, copy_box
from fxpress._files.archive.files import is_path
from fxpress._files.archive.reader import retry_if_replaced
from fxpress._files.archive.remote_archive import RemoteArchive
from fxpress._files.archive.weight_files import fill_shared
from fxpress._files.errors import ArchiveError
from fxpress._files.format import names
from fxpress._files.remote.ranges import Checked
from fxpress._files.remote.remote_file import AnyPath, UrlPath
from fxpress._files.remote.urls import local_path, opened_system, url_of
from fxpress._files.serde.limits import Limits


class ArchiveReader(StorageReader):  # type: ignore[misc]
    """A reader of weights in files, for `torch.distributed.checkpoint.load`.

    `load` fills tensors, DTensors and shards of FSDP2. Each rank reads the headers of the files and
    the bytes of its shards, but no entire file. Files at URLs are read by ranges, with several
    requests at a time. Weights have their names in the original module's `state_dict`. As with
    torch's readers, values are converted to the dtype of the target.

    Code in a file is run only with `allow_pickle`. If a rank finds an error in headers, names or
    sizes, or if ranks read different files, all ranks raise an error before any tensor changes.
    After a rank has read a tensor in full, it checks the tensor's checksum, if the file has one.

    Args:
        path: a `.pt2` file; a folder that `fxpress split` wrote; a safetensors file; an index of
            safetensors files (`model.safetensors.index.json`); or a folder with such an index, as
            `ArchiveWriter` writes it. A URL such as `s3://bucket/model.pt2` may replace the path if
            fsspec supports the protocol. A URL that ends in ".pt2", ".safetensors" or ".json" is a
            file; other URLs are folders.
        model: the name of the program in a `.pt2` file.
        check: before any tensor changes, read every record that contains a part of this rank's
            tensors, and compare the entire record with its checksum.
        allow_pickle: unpickle tensors of custom classes, which may run any code.
        limits: the limits on the cost of reading headers; None: the defaults, see
            `fxpress.archive.Limits`.

    Raises:
        TypeError: an argument is of a wrong type.
        fxpress.UnsupportedError: no installed package reads from the URL.

    `torch.distributed.checkpoint.load` raises torch's CheckpointException on every rank, with the
    errors of each rank in `failures`:

    - OSError: a file cannot be read.
    - fxpress.ArchiveError: a file is damaged or has changed, or the ranks read different files.
    - fxpress.LimitError: reading headers would cost more than the limits allow.
    - fxpress.SerializeError: a weight needs `allow_pickle`, or two names that share memory, such
      as the names of a tied weight, have different values.
    - fxpress.UnsupportedError: a tensor is of a dtype that this torch does not have.
    - RuntimeError, ValueError: torch's planner finds a name or sizes that the files do not have.
    - AssertionError: a header has an error; torch raises this type with the text of the error.

    A subclass of `torch.distributed.checkpoint.StorageReader`.

    Example:
        >>> import torch.distributed.checkpoint as dcp
        >>> from fxpress.checkpoint import ArchiveReader
        >>> fxpress.save(program, "model.pt2")
        >>> state = {"0.norm.weight": torch.zeros(8)}
        >>> dcp.load(state, storage_reader=ArchiveReader("model.pt2"), no_dist=True)
        >>> state["0.norm.weight"]
        tensor([1., 1., 1., 1., 1., 1., 1., 1.])
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        *,
        model: str = names.MODEL,
        check: bool = False,
        allow_pickle: bool = False,
        limits: Limits | None = None,
    ) -> None:
        if not is_path(path):
            raise TypeError(f"expected the path of weights, got a {type(path).__name__}")
        self._path = _path_of(path)
        self._options = ReaderOptions(model, allow_pickle, limits)
        self._check = check
        self._weights: Weights | None = None
        self._places: dict[tuple[str, tuple[int, ...]], Place] = {}

    def __repr__(self) -> str:
        model, allow_pickle = self._options.model, self._options.allow_pickle
        options: dict[str, Any] = {"model": model if model != names.MODEL else None}
        options |= {"check": self._check or None, "allow_pickle": allow_pickle or None}
        texts = [f", {name}={value!r}" for name, value in options.items() if value is not None]
        return f"ArchiveReader({str(self._path)!r}{''.join(texts)})"

    @property
    def checkpoint_id(self) -> Path | str:
        """The path or the URL that is read."""
        return self._path if isinstance(self._path, Path) else self._path.url

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | bytes | os.PathLike[str]) -> bool:
        """Return whether `checkpoint_id` can be the path of a checkpoint."""
        return is_path(checkpoint_id)

    def reset(self, checkpoint_id: str | bytes | os.PathLike[str] | None = None) -> None:
        """Close the files; read from `checkpoint_id` from now on, unless it is None."""
        self._close()
        if checkpoint_id is not None:
            self._path = _path_of(checkpoint_id)

    def _close(self) -> None:
        weights, self._weights = self._weights, None
        self._places = {}
        if weights is not None:
            weights.close()

    def read_metadata(self) -> Metadata:
        """Return the metadata of the checkpoint, with one chunk for each stored slice of a tensor.

        Raises:
            OSError: a file cannot be read.
            fxpress.ArchiveError: a file is damaged.
            fxpress.LimitError: reading a file would cost more than the limits allow.
            fxpress.SerializeError: a weight needs `allow_pickle`.
        """
        self._close()
        self._weights = retry_if_replaced(read_weights)(main_file(self._path), self._options)
        described: dict[str, Any] = {
            name: TensorStorageMetadata(
                TensorProperties(
                    # Planners need a torch.dtype. Reading raises an error if torch lacks the dtype.
                    dtype=stored.dtype if isinstance(stored.dtype, torch.dtype) else torch.uint8
                ),
                torch.Size(stored.sizes),
                [
                    ChunkStorageMetadata(torch.Size(part.offsets), torch.Size(part.sizes))
                    for part in stored.slices
                ],
            )
            for name, stored in self._weights.tensors.items()
        }
        described.update({name: BytesStorageMetadata() for name in self._weights.values})
        return Metadata(described, storage_meta=StorageMeta(self.checkpoint_id))

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Do nothing: `read_metadata` has found the files."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Find the bytes that a plan needs, and check that they exist."""
        weights = self._contents
        wanted = {
            _key(item.storage_index): item.storage_index
            for item in plan.items
            if item.type is not LoadItemType.BYTE_IO
        }
        found = weights.files.each(lambda index: self._find(weights, index), wanted.values())
        self._places = dict(zip(wanted, found, strict=True))
        if self._check:
            parts: dict[tuple[int, int], Checked] = {}
            for place in self._places.values():
                if isinstance(place, Extent) and place.checked is not None:
                    parts[id(place.checked.file), place.checked.begin] = place.checked
            weights.files.each(Checked.check, parts.values())
            weights.files.check()
        return dataclasses.replace(plan, storage_data=weights.digest())

    @property
    def _contents(self) -> Weights:
        if self._weights is None:
            raise ValueError("the reader has not read the metadata: call read_metadata first")
        return self._weights

    def _find(self, weights: Weights, index: MetadataIndex) -> Place:
        slices = weights.tensors[index.fqn].slices
        wanted = _key(index)[1]
        first = index.index or 0  # the likely position, tried before a search through all slices
        for part in (*slices[first : first + 1], *slices):
            if part.offsets == wanted:
                return part.find()
        raise ArchiveError(f"{self._path} does not contain a slice of {index.fqn!r} at {wanted}")

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Check that all ranks read the same checkpoint."""
        digests = [plan.storage_data for plan in plans]
        others = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
        if others:
            raise ArchiveError(
                f"{self._path}: the ranks {others} read another checkpoint than rank 0"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the tensors of a plan, file by file.

        Raises:
            OSError: a file cannot be read.
            fxpress.ArchiveError: a file has changed since the plan was made, or a checksum is
                wrong.
        """
        try:
            files = self._contents.files
            items = []
            for item in sorted(plan.items, key=self._order):
                if item.type is LoadItemType.BYTE_IO:
                    value = self._contents.values[item.storage_index.fqn]
                    planner.load_bytes(item, pickled(value))
                else:
                    items.append(item)
            targets = [_target(item, planner) for item in items]
            pairs = list(zip(items, targets, strict=True))
            filled = fill_shared(
                [item.dest_index.fqn for item in items],
                targets,
                lambda position, value: self._fill((items[position], value)),
            )
            others = [pair for position, pair in enumerate(pairs) if position not in filled]
            files.each(self._fill, others)
            for pair in pairs:
                planner.commit_tensor(*pair)
            files.check()
        finally:
            self._close()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _fill(self, pair: tuple[ReadItem, torch.Tensor]) -> None:
        item, target = pair
        with torch.no_grad():
            place = self._places[_key(item.storage_index)]
            copy_box(place, item.storage_offsets, item.lengths, target)

    def _order(self, item: ReadItem) -> tuple[str, int]:
        """Return a sort key by file and offset, so that files are read from front to back."""
        place = self._places.get(_key(item.storage_index))
        return (str(place.file.path), place.begin) if isinstance(place, Extent) else ("", 0)


def reader_of(archive: RemoteArchive, model: str, limits: Limits | None) -> ArchiveReader:
    """Return a reader of the weights of the program `model` in an archive that is open already."""
    reader = ArchiveReader(archive.file.url, model=model, limits=limits)
    reader._options = reader._options._replace(opened=archive)
    return reader


def _target(item: ReadItem, planner: LoadPlanner) -> torch.Tensor:
    target: torch.Tensor = planner.resolve_tensor(item).detach()
    if target.size() != item.lengths:
        raise ValueError(
            f"{item.dest_index.fqn!r}: expected a tensor of the sizes {list(item.lengths)}, got "
            f"{list(target.size())}"
        )
    return target


def _path_of(path: str | bytes | os.PathLike[str]) -> AnyPath:
    """Return a Path for a path or a `file://` URL, and a UrlPath for a URL that fsspec can open."""
    url = url_of(path)
    if url is None:
        return Path(local_path(path))
    opened_system(url)
    return UrlPath(url)


def _key(index: MetadataIndex) -> tuple[str, tuple[int, ...]]:
    return index.fqn, tuple(index.offset or ())
