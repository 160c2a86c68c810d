"""Refuse a tensor-parallel plan that cuts what passes from a stage to another one."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from fxpress._distributed.pipeline.errors import PipelineError
from fxpress._distributed.pipeline.module import StageModule
from fxpress._torch.decompose import pytree


def check_crossing(module: StageModule, number: int) -> None:
    """Refuse a plan by which a stage gives parts of what a later stage takes as a whole.

    That is so where a module that cuts its output is in one stage, and the one that takes parts is
    in the next. The stage is run on the meta device, where nothing is computed or sent. Where that
    cannot be done, the step itself tells.
    """
    made: Any = None
    with contextlib.suppress(Exception):  # values decide what runs, or an operator has no such form
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
                f"the plan cuts {facts.name!r}, which stage {number} gives to another: a rank has "
                f"{sizes} of it, and not {list(facts.shape)}. Let the module before the cut give "
                "all of it (output_layouts=Replicate()), or have both modules in one stage"
            )


def _run(module: StageModule) -> tuple[Any, ...]:
    """Return what the stage gives, on the meta device."""
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
