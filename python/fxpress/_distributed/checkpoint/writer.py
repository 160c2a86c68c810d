"""`ArchiveWriter` writes safetensors files for `torch.distributed.checkpoint.save`."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from fxpress._base.errors import UnsupportedError
from fxpress._distributed.checkpoint import distribution
from fxpress._distributed.checkpoint.placing import check_folder, complete
from fxpress._distributed.checkpoint.section import Part, index_of
from fxpress._distributed.checkpoint.tensor_files import INDEX
from fxpress._distributed.checkpoint.values import as_json, unpickled
from fxpress._files.archive import tensors
from fxpress._files.archive.files import AtomicFile, is_path, write_all
from fxpress._files.archive.folders import remove_left
from fxpress._files.archive.tensor_file import layout, write_with_checksum
from fxpress._files.archive.weight_files import difference_of
from fxpress._files.format.tensor_header import NUMBER


class ArchiveWriter(StorageWriter):  # type: ignore[misc]
    """A writer of safetensors files and their index, for `torch.distributed.checkpoint.save`.

    Each rank writes what torch's planner assigns to it: entire tensors, and slices of DTensors. The
    index `model.safetensors.index.json` names the files. `ArchiveReader` loads the checkpoint on
    any number of ranks; each rank reads the slices that it needs. safetensors and transformers can
    read the tensors that one file contains in full. The index also stores values that are not
    tensors: None, bool, int, float, str, and lists, tuples and dicts of these types.

    The coordinator writes the index last, when the files of all ranks are on the disk. Until then,
    and when a rank is killed, the previous checkpoint stays valid. The next save removes the files
    of killed ranks, and files that only the previous index names. All ranks write to one folder.

    Args:
        path: the folder, which is created if it is missing.
        file_bytes: the maximum bytes of a rank's file; a tensor that is larger gets its own file.

    Raises:
        TypeError: an argument is of a wrong type.
        ValueError: `file_bytes` is not positive.

    `torch.distributed.checkpoint.save` raises torch's CheckpointException on every rank, with the
    errors of each rank in `failures`:

    - OSError: a file cannot be written.
    - FileExistsError: the folder has a checkpoint of another format.
    - fxpress.UnsupportedError: safetensors lacks a tensor's dtype, the index cannot store a value,
      or `use_collectives` is False.

    A subclass of `torch.distributed.checkpoint.StorageWriter`.

    Example:
        >>> import torch.distributed.checkpoint as dcp
        >>> from fxpress.checkpoint import ArchiveReader, ArchiveWriter
        >>> writer = ArchiveWriter("step_100")
        >>> metadata = dcp.save({"a": torch.ones(2), "n": 3}, storage_writer=writer, no_dist=True)
        >>> state = {"a": torch.zeros(2), "n": 0}
        >>> dcp.load(state, storage_reader=ArchiveReader("step_100"), no_dist=True)
        >>> state
        {'a': tensor([1., 1.]), 'n': 3}
    """

    def __init__(
        self, path: str | bytes | os.PathLike[str], *, file_bytes: int = 5_000_000_000
    ) -> None:
        if not is_path(path):
            raise TypeError(f"expected the path of a checkpoint, got a {type(path).__name__}")
        if type(file_bytes) is not int:
            raise TypeError(f"expected file_bytes to be an int, got a {type(file_bytes).__name__}")
        if file_bytes <= 0:
            raise ValueError(f"expected file_bytes to be positive, got {file_bytes}")
        self._path = Path(os.fsdecode(path))
        self._file_bytes = file_bytes
        self._is_coordinator = False
        self._number = ""  # the number of the save; set only on the coordinator
        self._written: list[AtomicFile] = []

    @property
    def checkpoint_id(self) -> Path:
        """The folder to which the checkpoint is written."""
        return self._path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | bytes | os.PathLike[str]) -> bool:
        """Return whether `checkpoint_id` can be the folder of a checkpoint."""
        return is_path(checkpoint_id) and "://" not in os.fsdecode(checkpoint_id)

    def storage_meta(self) -> StorageMeta:
        """Return the folder as the `StorageMeta` that planners get."""
        return StorageMeta(self._path)

    def reset(self, checkpoint_id: str | bytes | os.PathLike[str] | None = None) -> None:
        """Remove temporary files; write to `checkpoint_id` from now on, unless it is None."""
        self._discard()
        if checkpoint_id is not None:
            self._path = Path(os.fsdecode(checkpoint_id))

    def _discard(self) -> None:
        """Remove the temporary files."""
        while self._written:
            self._written.pop().discard()

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin a save."""
        if not kwargs.get("use_collectives", True):
            raise UnsupportedError(
                "use_collectives=False is not supported: expected a coordinator to write the index"
            )
        self._is_coordinator = is_coordinator
        self._discard()

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Check that a rank's items can be in safetensors files and their index."""
        if not plan.usable:
            raise UnsupportedError(
                "enable_plan_caching=True is not supported: each save needs a new plan"
            )
        for item in plan.items:
            distribution.check_item(item)
        if self._is_coordinator:
            check_folder(self._path)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Assign file names to each rank; no other save uses these names."""
        self._path.mkdir(parents=True, exist_ok=True)
        remove_left(self._path / INDEX)
        works = distribution.distribute_items([plan.items for plan in plans], self._file_bytes)
        self._number = works[0].number
        return [
            dataclasses.replace(plan, storage_data=work)
            for plan, work in zip(plans, works, strict=True)
        ]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the files of a rank under temporary names, tensor by tensor.

        Raises:
            OSError: a file cannot be written.
            fxpress.UnsupportedError: a value cannot be in the index.
        """
        work: distribution.Work = plan.storage_data
        results = []
        for item in plan.items:
            if item.type is WriteItemType.BYTE_IO:
                name = item.index.fqn
                value = unpickled(name, planner.resolve_data(item))
                results.append(WriteResult(item.index, 0, as_json(name, value)))
        try:
            for name, positions in work.files:
                items = [plan.items[position] for position in positions]
                results += self._write_file(name, work.number, items, planner)
        except BaseException:
            self._discard()
            raise
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _write_file(
        self, name: str, number: str, items: list[WriteItem], planner: SavePlanner
    ) -> list[WriteResult]:
        by_key = {distribution.key_of_item(item): item for item in items}
        described = {
            key: (item.tensor_data.properties.dtype, tuple(item.tensor_data.chunk.sizes))
            for key, item in by_key.items()
        }
        header, order = layout(described, {"format": "pt", NUMBER: number})
        file = AtomicFile(self._path / name, self._path / INDEX)
        self._written.append(file)
        write_all(file.descriptor, memoryview(header))
        parts = []
        for key in order:
            plain = _plain(key, planner.resolve_data(by_key[key]), *described[key])
            crc = write_with_checksum(file.descriptor, plain)
            parts.append((by_key[key].index, plain.nbytes, crc))
        file.sync()
        whole = os.fstat(file.descriptor).st_size
        assert file.temporary is not None
        at = (name, file.temporary.name, whole)
        return [WriteResult(index, size, Part(*at, crc)) for index, size, crc in parts]

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Rename the files of all ranks, and write the index, which completes the checkpoint.

        Raises:
            OSError: a file cannot be written, or a rank's file is not in the folder.
        """
        flat = [result for each in results for result in each]
        parts = {result.storage_data for result in flat if isinstance(result.storage_data, Part)}
        files = {part.file: part.temporary for part in parts}
        complete(self._path, files, index_of(metadata, flat, self._number))


def _plain(
    key: str, found: torch.Tensor, dtype: torch.dtype, sizes: tuple[int, ...]
) -> torch.Tensor:
    """Return the elements to write; ValueError unless they have the planned dtype and sizes."""
    plain = tensors.elements_of(key, found)
    if difference := difference_of((plain.dtype, tuple(plain.shape)), (dtype, sizes)):
        raise ValueError(f"{key!r} differs from the save plan: {difference}")
    return plain
