"""Cut the modules of a stage over a mesh of devices, and read each rank's part of the weights."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from fxpress._checkpoint.reader import ArchiveReader
from fxpress._pipeline.errors import PipelineError

# What styles of torch look for in a module, and handle by its weights alone.
_KINDS: dict[str, Any] = {
    "torch.nn.modules.linear.Linear": nn.Linear,
    "torch.nn.modules.sparse.Embedding": nn.Embedding,
}


def parallelize(module: nn.Module, mesh: DeviceMesh, plan: dict[str, ParallelStyle]) -> None:
    """Apply a tensor-parallel plan of torch to the modules of a stage, whose tensors are on meta.

    Args:
        module: of the stage.
        mesh: of one dimension.
        plan: name of a module, which may have stars, -> style. Names that are in other stages do
            nothing.

    Raises:
        PipelineError: a weight cannot be divided by the mesh, or torch refuses the plan.
    """
    for each in module.modules():
        type_name = getattr(each, "type_name", None)
        kind = _KINDS.get(type_name() or "") if type_name is not None else None
        if kind is not None:
            own: Any = type(each)
            each.__class__ = _also(own, kind)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Parallelize plan key")  # in other stages
            parallelize_module(module, mesh, plan)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise PipelineError(f"the plan cannot be applied: {error}") from error
    for name, tensor in module.state_dict().items():
        for placement in tensor.placements if isinstance(tensor, DTensor) else ():
            if placement.is_shard() and tensor.shape[placement.dim] % mesh.size():
                raise PipelineError(
                    f"a mesh of {mesh.size()} does not divide dimension {placement.dim} of {name}, "
                    f"which has the size {tensor.shape[placement.dim]}"
                )


@functools.cache
def _also(kind: Any, base: Any) -> Any:
    """Return a class that is both: torch's styles ask for the class of a module in eager code."""
    return type(
        kind.__name__, (kind, base), {"__module__": kind.__module__, "extra_repr": kind.extra_repr}
    )


def fill(module: nn.Module, reader: ArchiveReader, device: torch.device) -> None:
    """Make the tensors of a stage on a device, and read them; of a shard, only its bytes.

    Raises:
        fxpress.ArchiveError: the file is damaged.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    module._apply(functools.partial(_made, device=device))
    for first, *others in names.values():
        for name in others:  # of tied weights, each of which has been made anew
            _set(module, name, module.get_parameter(first))
    state = {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
    with torch.no_grad(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        checkpoint.load(state, storage_reader=reader, no_dist=True)


def _set(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
    path, _, leaf = name.rpartition(".")
    setattr(module.get_submodule(path), leaf, parameter)


def _made(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return torch.empty_like(tensor, device=device) if local.is_meta else tensor.to(device)
