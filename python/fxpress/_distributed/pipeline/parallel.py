"""Cut the modules of a stage over a mesh of devices, and read each rank's shards of weights."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

from fxpress._distributed.checkpoint.reader import ArchiveReader
from fxpress._distributed.errors import PipelineError
from fxpress._distributed.pipeline.module import StageModule
from fxpress._distributed.pipeline.names import plain, tensor_of, tie, tied
from fxpress._torch.decompose import pytree

# torch's parallel styles accept only modules of these classes, but use only their weights.
_KINDS: dict[str, Any] = {
    "torch.nn.modules.linear.Linear": nn.Linear,
    "torch.nn.modules.sparse.Embedding": nn.Embedding,
}


def parallelize(
    module: nn.Module, mesh: DeviceMesh, plan: dict[str, ParallelStyle]
) -> dict[str, bool]:
    """Apply a plan to a stage on the meta device; return {name in plan: whether a module fits}."""
    for each in filter(_runs, module.modules()):
        kind = _KINDS.get(each.type_name() or "")
        if kind is not None:
            own: Any = type(each)
            each.__class__ = _also(own, kind)
    ties = tied(module)
    found = {name: _matching(module, name) for name in plan}
    try:
        for name, style in plan.items():
            for each in found[name]:
                parallelize_module(each, mesh, style)
    except (ValueError, RuntimeError, NotImplementedError) as error:
        raise PipelineError(f"the plan cannot be applied: {error}") from error
    for names in ties:
        _tie(module, names)
    for name, tensor in module.state_dict().items():
        for placement in tensor.placements if isinstance(tensor, DTensor) else ():
            if placement.is_shard() and tensor.shape[placement.dim] % mesh.size():
                raise PipelineError(
                    f"a mesh of {mesh.size()} does not divide dimension {placement.dim} of {name}, "
                    f"which has the size {tensor.shape[placement.dim]}"
                )
    return {name: bool(modules) for name, modules in found.items()}


def all_keys(stages: Iterable[dict[str, bool]]) -> dict[str, bool]:
    """Return, for each name in plans, whether any of the stages has a module for it."""
    known: dict[str, bool] = {}
    for keys in stages:
        for name, has_module in keys.items():
            known[name] = known.get(name, False) or has_module
    return known


def check_keys(keys: dict[str, bool]) -> None:
    """Raise PipelineError if a name in a tensor-parallel plan has no module in any stage."""
    for name, has_module in keys.items():
        if not has_module:
            raise PipelineError(f"the plan names {name!r}, which is not a module that a stage runs")


def _matching(module: nn.Module, key: str) -> list[nn.Module]:
    """Return the modules that match a name in a plan; as in torch, `*` does not match a dot."""
    wanted = key.split(".") if key else []
    found: dict[int, nn.Module] = {}
    for name, each in module.named_modules(remove_duplicate=False):
        parts = plain(name).split(".") if name else []
        fits = len(parts) == len(wanted) and all(map(fnmatch.fnmatch, parts, wanted))
        if fits and (each is module or _runs(each)):
            found[id(each)] = each
    return list(found.values())


def _runs(module: nn.Module) -> bool:
    """Return whether the stage calls a module. Modules that it does not call have tied weights."""
    return hasattr(module, "type_name")


def _tie(module: nn.Module, names: list[str]) -> None:
    """Tie parameters of a stage; PipelineError if the plan cuts them differently."""
    running = [name for name in names if _runs(module.get_submodule(name.rpartition(".")[0]))]
    leading = (running or names)[0]
    first = tensor_of(module, leading)
    for name in names:
        other = tensor_of(module, name)
        if name in running and placed(other) != placed(first):
            raise PipelineError(
                f"{plain(leading)} and {plain(name)} are one weight, but the plan shards them "
                f"differently: {placed(first)} and {placed(other)}"
            )
        if other is not first:
            tie(module, name, first)


def placed(tensor: torch.Tensor) -> str:
    """Describe how a tensor is cut over a mesh."""
    return str(tensor.placements) if isinstance(tensor, DTensor) else "not at all"


@functools.cache
def _also(kind: Any, base: Any) -> Any:
    """Return a subclass of both, so that torch's parallel styles accept a module; see `_KINDS`."""
    return type(
        kind.__name__, (kind, base), {"__module__": kind.__module__, "extra_repr": kind.extra_repr}
    )


def fill(module: nn.Module, reader: ArchiveReader, device: torch.device) -> None:
    """Allocate the tensors of a stage on a device, and read only the bytes of their shards."""
    module._apply(functools.partial(_made, device=device))
    state = {
        name: tensor
        for name, tensor in module.state_dict(keep_vars=True).items()
        if isinstance(tensor, torch.Tensor)
    }
    # The reader is called directly, because torch's `load` would wrap its errors.
    planner = DefaultLoadPlanner()
    planner.set_up_planner(state, reader.read_metadata(), is_coordinator=True)
    plan = reader.prepare_local_plan(planner.create_local_plan())
    reader.read_data(planner.finish_plan(plan), planner)


def _made(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return torch.empty_like(tensor, device=device) if local.is_meta else tensor.to(device)


def check_crossing(module: StageModule, number: int) -> None:
    """Raise PipelineError if the plan cuts a value that a later stage needs in full."""
    made: Any = None
    # A stage that depends on data, or has an operator without a meta kernel, cannot run on the meta
    # device. Such a stage is not checked here: with a wrong plan, its first step fails.
    with contextlib.suppress(Exception):
        made = _run(module)
    if made is None:
        return
    for value, facts in zip(made, module.facts.outputs, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        sizes = list(value.to_local().shape if isinstance(value, DTensor) else value.shape)
        pairs = zip(sizes, facts.shape, strict=True)
        if isinstance(value, DTensor) or any(
            isinstance(wanted, int) and size != wanted for size, wanted in pairs
        ):
            raise PipelineError(
                f"the plan cuts {facts.name!r}, which stage {number} passes on: a rank has the "
                f"shape {sizes}, expected {list(facts.shape)}. Pass output_layouts=Replicate() to "
                "the style of the module that returns the value, or use the value in the same stage"
            )


def _run(module: StageModule) -> tuple[Any, ...]:
    """Return the outputs of the stage on the meta device."""
    values = pytree.tree_map_only(torch.Tensor, _on_meta, module.given_fakes())
    program: Any = module.program
    real = {
        name: torch.empty_like(tensor, device="meta")
        for name, tensor in program.named_buffers(remove_duplicate=False)
        if not tensor.is_meta
    }
    with torch.no_grad():
        return tuple(torch.func.functional_call(program, real, tuple(values)))


def _on_meta(fake: torch.Tensor) -> torch.Tensor:
    return torch.empty([_hint(size) for size in fake.shape], dtype=fake.dtype, device="meta")


def _hint(size: Any) -> int:
    return int(size) if isinstance(size, int) else int(size.node.hint)
