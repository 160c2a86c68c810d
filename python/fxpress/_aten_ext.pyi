from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph

INT_OPERATORS: tuple[str, ...]

class Plan:
    """A graph's instructions; made and used by run(). Copies and pickles of it are None."""

def build_info() -> dict[str, Any]: ...
def storage_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of the tensors' storages, shared ones counted once."""

def initialize_engine(objects: dict[str, object], names: dict[str, str]) -> None: ...
def register_forward(function: Callable[..., Any], dispatches: bool, counts: bool) -> None: ...
def run(module: torch.nn.Module, graph: Graph, args: tuple[Any, ...] | list[Any], /) -> Any: ...
def plan_info(graph: Graph) -> dict[str, Any] | None: ...
def next_call(dispatcher: torch.nn.Module) -> int: ...
def set_next_call(dispatcher: torch.nn.Module, index: int) -> None: ...
def same_data(values: Sequence[Any]) -> list[int]:
    """For each value the position of the first one that is the same object, or the same view."""

tensor_facts: object  # a capsule for _native

def storage_places(values: Sequence[torch.Tensor]) -> list[tuple[int, int] | None]:
    """(address, bytes) of storages; None for what is more than a view of one."""

def storages_of(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Their storages, as tensors of bytes: uint8, one dimension."""

def allocate_bytes(
    sizes: Sequence[int], device: torch.device
) -> tuple[list[torch.Tensor], list[int]]:
    """Tensors of bytes that are not filled, and their addresses."""

def make_views(storages: Sequence[torch.Tensor], views: Sequence[tuple[Any, ...]]) -> list[Any]:
    """views: (position of the storage, its name for errors, dtype, sizes, strides, offset,
    requires_grad, is a parameter). ValueError for what is not inside of its storage."""

def clone_separately(values: list[Any], parameters: Sequence[bool]) -> list[Any]:
    """Copies with storages of their own, as Parameters where asked for; None for what `clone()`
    does not simply copy."""

def clone_aliased(values: list[torch.Tensor]) -> tuple[list[Any], dict[int, torch.Tensor]]:
    """Copies that share storages where the originals do; None for what is no plain CPU tensor, and
    those by position."""
