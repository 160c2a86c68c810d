"""State that has several names in a stage: tied weights, and those of further calls of modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn


def tied(module: nn.Module) -> list[list[str]]:
    """Return the names of each parameter and buffer that has several."""
    names: dict[int, list[str]] = {}
    for prefix, each in module.named_modules(remove_duplicate=False):
        for name, tensor in (*each._parameters.items(), *each._buffers.items()):
            if tensor is not None:
                names.setdefault(id(tensor), []).append(f"{prefix}.{name}" if prefix else name)
    return [each for each in names.values() if len(each) > 1]


def tensor_of(module: nn.Module, name: str) -> torch.Tensor:
    """Return a parameter or a buffer."""
    path, _, own = name.rpartition(".")
    found: torch.Tensor = getattr(module.get_submodule(path), own)
    return found


def tie(module: nn.Module, name: str, tensor: torch.Tensor) -> None:
    """Let a name of a parameter or a buffer mean a tensor."""
    path, _, own = name.rpartition(".")
    setattr(module.get_submodule(path), own, tensor)


@contextlib.contextmanager
def kept(module: nn.Module) -> Iterator[None]:
    """Return a block that may replace state: what was one before is one after it.

    `to_empty` and `load_state_dict(assign=True)` make a tensor for each name.
    """
    before = tied(module)
    yield
    for first, *others in before:
        tensor = tensor_of(module, first)
        for name in others:
            if tensor_of(module, name) is not tensor:
                tie(module, name, tensor)
