"""Check arguments before files are read or ranks communicate, and batches before they are sent."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from fxpress._distributed.errors import PipelineError
from fxpress._torch.decompose import pytree

_Facts = dict[str, tuple[torch.dtype, tuple[int, ...]]]  # path of a tensor -> dtype, shape


def check_stage(stage: int, count: int, name: str) -> None:
    """Raise PipelineError unless a stage has this number."""
    if type(stage) is not int or not 0 <= stage < count:
        raise PipelineError(f"stage {stage!r} does not exist: {name} has stages 0 to {count - 1}")


def check_device(device: Any) -> None:
    """Raise TypeError or ValueError unless the argument is a device, its name, or None."""
    if not isinstance(device, (torch.device, str, type(None))):
        raise TypeError(
            f"expected device to be a torch.device or its name, got a {type(device).__name__}"
        )
    try:
        torch.device("cpu" if device is None else device)
    except RuntimeError:
        raise ValueError(f"expected a device such as 'cpu' or 'cuda:1', got {device!r}") from None


def check_mesh(mesh: DeviceMesh | None, plan: Any) -> None:
    """Raise ValueError unless a stage can be cut over the mesh by the tensor-parallel plan."""
    if (mesh is None) != (plan is None):
        raise ValueError("expected both `mesh` and `plan`, or neither")
    if mesh is None:
        return
    if not isinstance(mesh, DeviceMesh):
        raise ValueError(f"expected mesh to be a DeviceMesh, got a {type(mesh).__name__}")
    if mesh.ndim != 1:
        raise ValueError(f"the mesh has {mesh.ndim} dimensions: slice one of them, mesh[name]")
    if not isinstance(plan, dict):
        raise ValueError(
            f"expected `plan` to be a dict from names to styles, got a {type(plan).__name__}"
        )
    for name, style in plan.items():
        if not isinstance(name, str) or not isinstance(style, ParallelStyle):
            raise ValueError(f"expected plan to map str to ParallelStyle, got {name!r}: {style!r}")


def check_group(group: Any) -> None:
    """Raise ValueError unless this rank is in the process group."""
    if not distributed.is_available() or not distributed.is_initialized():
        raise ValueError("torch.distributed is not initialized: call init_process_group")
    if distributed.get_rank(group) < 0:
        raise ValueError(f"rank {distributed.get_rank()} is not in the group")


def check_timeout(timeout: float) -> None:
    """Raise ValueError unless the timeout is a positive number of seconds."""
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout < math.inf:
        raise ValueError(f"expected timeout to be a positive number of seconds, got {timeout!r}")


def check_loss(loss_fn: Callable[..., Any] | None) -> None:
    """Raise TypeError unless the loss function is callable or None."""
    if loss_fn is not None and not callable(loss_fn):
        raise TypeError(f"expected loss_fn to be a function, got a {type(loss_fn).__name__}")


def check_parts(number: int) -> None:
    """Raise ValueError unless the number of microbatches is a positive int."""
    if type(number) is not int or number < 1:
        raise ValueError(f"expected n_microbatches to be a positive int, got {number!r}")


class MicrobatchChecker:
    """Checks that all microbatches of a schedule's steps have equal sizes on this rank."""

    def __init__(self, parts: int) -> None:
        # torch sends all microbatches with the sizes of the first, even if their sizes differ.
        self._parts, self._trains = parts, False
        self._before: dict[str, _Facts] = {}

    def begin(self, trains: bool, target: Any) -> None:
        """Check a step's target, which may be None; `trains`: whether the step runs backward."""
        if trains != self._trains:
            self._trains, self._before = trains, {}
        if not isinstance(target, torch.Tensor):
            return
        if target.dim() == 0 or target.size(0) % self._parts:
            rows = f"with batch size {target.size(0)}" if target.dim() else "without dimensions"
            raise PipelineError(
                f"a target {rows} cannot be divided into {self._parts} microbatches"
            )
        self._compare("the target", {"the target": (target.dtype, tuple(target.shape))})

    def check(self, args: Any, kwargs: Any) -> None:
        """Check a step's inputs: `args` and `kwargs` are None, or have one item per microbatch."""
        for each in (args, kwargs):
            if each is not None and len(each) != self._parts:
                raise PipelineError(
                    f"expected inputs of {self._parts} microbatches, got {len(each)}"
                )
        empty: list[Any] = [()] * self._parts
        args, kwargs = (empty if each is None else each for each in (args, kwargs))
        found = [_facts(*pair) for pair in zip(args, kwargs, strict=True)]
        for facts in found[1:]:
            for name in facts.keys() & found[0].keys():
                if facts[name] != found[0][name]:
                    raise PipelineError(self._uneven(name, [each[name] for each in found]))
        self._compare("inputs", found[0])

    def _uneven(self, name: str, found: list[Any]) -> str:
        shapes = [shape for _, shape in found]
        if len({len(shape) for shape in shapes}) == 1:
            sizes = list(zip(*shapes, strict=True))
            different = [each for each in sizes if len(set(each)) > 1]
            if len(different) == 1:
                rows = sum(different[0])
                return (
                    f"a batch of {rows} ({name}) cannot be divided into {self._parts} microbatches"
                )
        other = next(each for each in found if each != found[0])
        return f"{name} is {_text(found[0])} in a microbatch, and {_text(other)} in another"

    def _compare(self, kind: str, found: _Facts) -> None:
        """Raise PipelineError if tensors differ from the first step's in dtype or shape."""
        before = self._before.setdefault(kind, found)
        if found.keys() != before.keys():
            names, others = (", ".join(sorted(each)) or "none" for each in (found, before))
            raise PipelineError(
                f"the microbatches have the tensors {names}, and previously had {others}"
            )
        for name, facts in found.items():
            if facts != before[name]:
                whose = "" if name == kind else " of a microbatch"
                raise PipelineError(
                    f"{name}{whose} is {_text(facts)}, and was {_text(before[name])} in the "
                    "previous microbatches"
                )


def _facts(args: Any, kwargs: Any) -> _Facts:
    named = {
        f"{kind}{pytree.keystr(path)}": leaf
        for kind, tree in (("args", args), ("kwargs", kwargs))
        for path, leaf in pytree.tree_flatten_with_path(tree)[0]
    }
    return {
        name: (leaf.dtype, tuple(leaf.shape))
        for name, leaf in named.items()
        if isinstance(leaf, torch.Tensor)
    }


def _text(facts: tuple[torch.dtype, tuple[int, ...]]) -> str:
    dtype, shape = facts
    return f"{str(dtype).removeprefix('torch.')}{list(shape)}"
