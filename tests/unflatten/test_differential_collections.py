"""unflatten against torch, and against eager, on torch's own case collections."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram
from torch.testing._internal.common_modules import module_db

from tests.support.exported import exportdb_cases, exported_or_skipped, module_db_cases
from tests.support.unflatten_cases import assert_unflattens_as_torch

pytestmark = pytest.mark.slow("each case is done by torch too")

MODULES = {name: (sample, build) for name, sample, build in module_db_cases()}
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


def runs(program: ExportedProgram, args: Any, kwargs: Any) -> bool:
    """Whether torch itself runs what it exported: a copy of it, whose buffers it may write."""
    try:
        copied = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        copy.deepcopy(program).module()(*copied[0], **copied[1])
    except Exception:
        return False
    return True


@STRICT
@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb(name: str, strict: bool) -> None:
    case = exportdb_cases()[name]
    args, kwargs = case.example_args, case.example_kwargs or {}
    program = exported_or_skipped(
        case.model, args, kwargs, dynamic_shapes=case.dynamic_shapes, strict=strict
    )
    eager = copy.deepcopy(case.model) if runs(program, args, kwargs) else None
    assert_unflattens_as_torch(program, eager, args, kwargs)


@STRICT
@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_db(name: str, strict: bool) -> None:
    sample, build = MODULES[name]
    torch.manual_seed(0)
    model = build().eval()
    program = exported_or_skipped(model, sample.args, sample.kwargs, strict=strict)
    eager = copy.deepcopy(model) if runs(program, sample.args, sample.kwargs) else None
    assert_unflattens_as_torch(program, eager, sample.args, sample.kwargs)


TRAINED = (
    "nn.BatchNorm1d",
    "nn.BatchNorm2d",
    "nn.BatchNorm3d",
    "nn.InstanceNorm1d",
    "nn.InstanceNorm2d",
    "nn.LayerNorm",
    "nn.GroupNorm",
    "nn.Conv2d",
    "nn.Linear",
    "nn.Embedding",
    "nn.Bilinear",
    "nn.PReLU",
    "nn.Dropout",
)


def training_samples() -> dict[str, tuple[Any, Any]]:
    """The samples of each module of TRAINED, in training mode, by a name of their own."""
    found = {}
    for info in module_db:
        if info.name not in TRAINED:
            continue
        samples = info.module_inputs_func(
            info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
        )
        for index, sample in enumerate(samples):
            if sample.forward_input is not None and index < 3:
                made = sample.constructor_input
                build = functools.partial(info.module_cls, *made.args, **made.kwargs)
                found[f"{info.name}-{index}"] = (sample.forward_input, build)
    return found


IN_TRAINING = training_samples()


class Nested(torch.nn.Module):
    """The module one level down, with a parameter of the root's in front of it."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = torch.nn.ModuleDict({"it": inner})
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        x = x * self.scale if x.is_floating_point() else x
        return self.inner["it"](x, *args, **kwargs)


@pytest.mark.parametrize("name", sorted(IN_TRAINING))
def test_module_db_in_training(name: str) -> None:
    """Buffers are written and gradients flow as in the eager module."""
    sample, build = IN_TRAINING[name]
    torch.manual_seed(0)
    model = Nested(build().train())
    program = exported_or_skipped(model, sample.args, sample.kwargs, strict=False)
    eager = copy.deepcopy(model) if runs(program, sample.args, sample.kwargs) else None
    assert_unflattens_as_torch(program, eager, sample.args, sample.kwargs, gradients=True)
