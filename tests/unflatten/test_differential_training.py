"""unflatten against torch, and against eager, on modules of torch's module_db in training."""

from __future__ import annotations

import copy
import functools
from typing import Any

import pytest
import torch
from torch.testing._internal.common_modules import module_db

from tests.corpus.programs import runs
from tests.support.exported import exported_or_skipped
from tests.support.unflatten_cases import assert_unflattens_as_torch

pytestmark = pytest.mark.slow("each case is done by torch too")

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
    """The samples of each module of TRAINED, in training mode, by another name."""
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
