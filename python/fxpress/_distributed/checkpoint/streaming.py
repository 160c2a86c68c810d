"""Copy a checkpoint to a `StorageWriter` of torch, tensor by tensor."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import create_default_global_save_plan
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
)
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter

from fxpress._distributed.checkpoint.values import pickled
from fxpress._distributed.checkpoint.weights import Stored, Weights


class _Planner(SavePlanner):  # type: ignore[misc]
    """A planner that reads a tensor when torch's writer requests it, and frees the previous one."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._last: torch.Tensor | None = None

    def set_up_planner(
        self, state_dict: Any, storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        """Ignore `state_dict`, because the tensors are in files."""

    def create_local_plan(self) -> SavePlan:
        """Return a plan to write each tensor in full, and each value."""
        items = [_item(name, stored) for name, stored in self._weights.tensors.items()]
        items += [
            WriteItem(MetadataIndex(name), WriteItemType.BYTE_IO) for name in self._weights.values
        ]
        return SavePlan(items)

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        """Return the plans unchanged, and the metadata that torch computes from the plans."""
        plans, metadata = create_default_global_save_plan(all_plans)
        metadata.planner_data = {name: (name,) for name in metadata.state_dict_metadata}
        return plans, metadata

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return new_plan

    def resolve_data(self, write_item: WriteItem) -> Any:
        """Return the tensor, or the pickled value, that an item writes."""
        name = write_item.index.fqn
        if write_item.type is WriteItemType.BYTE_IO:
            return pickled(self._weights.values[name])
        self.free_last()
        self._last = self._weights.read(name)
        return self._last

    def free_last(self) -> None:
        """Free the memory of the tensor that was read last."""
        if self._last is not None:
            self._last.untyped_storage().resize_(0)
            self._last = None


def _item(name: str, stored: Stored) -> WriteItem:
    sizes = torch.Size(stored.sizes)
    offsets = torch.Size((0,) * len(sizes))
    data = TensorWriteData(
        ChunkStorageMetadata(offsets, sizes), TensorProperties(dtype=stored.dtype), sizes
    )
    return WriteItem(MetadataIndex(name, offsets), WriteItemType.TENSOR, tensor_data=data)


def save_all(weights: Weights, writer: StorageWriter) -> None:
    """Save an entire checkpoint with a writer."""
    planner = _Planner(weights)
    with _errors_of_one_process():
        dcp.save({}, storage_writer=writer, planner=planner, no_dist=True)
    planner.free_last()


@contextlib.contextmanager
def _errors_of_one_process() -> Iterator[None]:
    """Run a block; raise the only rank's error in place of torch's CheckpointException."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
        try:
            yield
        except CheckpointException as error:
            ((cause, _),) = error.failures.values()
            # A failed write makes torch close its zip writer, which then raises RuntimeError.
            is_closing = isinstance(cause, RuntimeError) and isinstance(cause.__context__, OSError)
            raise (cause.__context__ if is_closing else cause) from None
