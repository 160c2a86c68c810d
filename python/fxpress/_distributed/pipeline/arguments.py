"""Refuse arguments before anything is read or agreed on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from fxpress._distributed.errors import PipelineError


def check_stage(stage: int, count: int, name: str) -> None:
    """Refuse the number of a stage."""
    if type(stage) is not int or not 0 <= stage < count:
        raise PipelineError(f"there is no stage {stage!r}: {name} has {count}, from 0")


def check_device(device: Any) -> None:
    """Refuse a device."""
    if not isinstance(device, (torch.device, str, type(None))):
        raise TypeError(f"device is a torch.device or its name, not a {type(device).__name__}")
    try:
        torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise ValueError(f"torch has no device {device!r}; 'cpu' or 'cuda:1' is one") from None


def check_mesh(mesh: DeviceMesh | None, plan: Any) -> None:
    """Refuse a mesh that a stage cannot be cut over, and what is no tensor-parallel plan."""
    if (mesh is None) != (plan is None):
        raise ValueError("mesh and plan belong together")
    if mesh is None:
        return
    if not isinstance(mesh, DeviceMesh):
        raise ValueError(f"mesh is a DeviceMesh of torch, not a {type(mesh).__name__}")
    if mesh.ndim != 1:
        raise ValueError(f"the mesh has {mesh.ndim} dimensions: slice one of them, mesh[name]")
    if not isinstance(plan, dict):
        raise ValueError(f"plan is a dict of names and styles, not a {type(plan).__name__}")
    for name, style in plan.items():
        if not isinstance(name, str) or not isinstance(style, ParallelStyle):
            raise ValueError(f"the plan has {style!r} for {name!r}: it has styles for names")


def check_group(group: Any) -> None:
    """Refuse a process group."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise ValueError("torch.distributed is not initialized: init_process_group does that")
    if distributed.get_rank(group) < 0:
        raise ValueError(f"rank {distributed.get_rank()} is not in the group")


def check_timeout(timeout: float) -> None:
    """Refuse a number of seconds."""
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ValueError(f"the timeout is a number of seconds above 0, not {timeout!r}")


def check_loss(loss_fn: Callable[..., Any] | None) -> None:
    """Refuse a loss function."""
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"loss_fn is a function, not a {type(loss_fn).__name__}")


def check_parts(number: int) -> None:
    """Refuse a number of microbatches."""
    if type(number) is not int or number < 1:
        raise ValueError(f"n_microbatches is a whole number above 0, not {number!r}")
