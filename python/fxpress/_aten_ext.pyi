from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph

INT_OPERATORS: tuple[str, ...]

class Plan:
    """A graph's instructions, which run() makes and uses. Copies and pickles of a plan are None."""

def build_info() -> dict[str, Any]: ...
def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Return the bytes of the tensors' storages; shared storages count once."""

def initialize_engine(objects: dict[str, object], names: dict[str, str]) -> None: ...
def register_forward(function: Callable[..., Any], dispatches: bool, counts: bool) -> None: ...
def run(module: torch.nn.Module, graph: Graph, args: tuple[Any, ...] | list[Any], /) -> Any: ...
def plan_info(graph: Graph) -> dict[str, Any] | None: ...
def next_call(dispatcher: torch.nn.Module) -> int: ...
def set_next_call(dispatcher: torch.nn.Module, index: int) -> None: ...
def same_data(values: Sequence[Any]) -> list[int]:
    """Return, for each value, the position of the first one that is the same object or view."""

tensor_facts: object  # a capsule for _native

def storage_places(values: Sequence[torch.Tensor]) -> list[tuple[int, int] | None]:
    """Return (address, bytes) of the storages; None for a tensor that is more than a view."""

def storages_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors' storages, as tensors of bytes: uint8, one dimension."""

def allocate_bytes(
    sizes: Sequence[int], device: torch.device
) -> tuple[list[torch.Tensor], list[int]]:
    """Return tensors of uninitialized bytes, and their addresses."""

def make_views(storages: Sequence[torch.Tensor], views: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Return tensors that are views of storages.

    views: (position of the storage, its name for errors, dtype, sizes, strides, offset,
    requires_grad, is a parameter). ValueError for a view that is not inside of its storage.
    """

def clone_separately(values: list[Any], parameters: Sequence[bool]) -> list[Any]:
    """Return copies with storages of their own, as Parameters where `parameters` is true.

    The copy is None for a value that `clone()` does not simply copy.
    """

def clone_aliased(values: list[torch.Tensor]) -> tuple[list[Any], dict[int, torch.Tensor]]:
    """Return copies that share storages where the originals do, and the values without a copy.

    The copy is None for a value that is not a plain CPU tensor; such values are returned by
    position.
    """
