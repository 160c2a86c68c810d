"""Exports compared with torch's, for models, and for operators that occur twice each."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

from tests.support import subclass_models, unflatten_models
from tests.support.exported import operator_samples, skipped_unless_exported
from tests.support.programs import assert_exports_as_torch
from tests.support.sampled import sampled, turns

pytestmark = pytest.mark.deep("hundreds of exports by torch and by us")


def unflatten_cases() -> dict[str, Any]:
    made = {}
    for name, cls in vars(unflatten_models).items():
        if isinstance(cls, type) and issubclass(cls, nn.Module):
            try:
                made[name] = cls()
            except TypeError:
                continue
    return made


UNFLATTEN = unflatten_cases()


@pytest.mark.parametrize(("name", "strict"), turns(sorted(UNFLATTEN), [False, True]))
def test_nested_models(name: str, strict: bool) -> None:
    model = UNFLATTEN[name]
    assert_exports_as_torch(model, (torch.rand(4, 4),), strict=strict)


@pytest.mark.parametrize("made", ["repeated", "tied", "Block", "Buffered", "AroundAndInside"])
def test_subclasses(made: str) -> None:
    with skipped_unless_exported():
        model = getattr(subclass_models, made)()
    assert_exports_as_torch(model, (torch.rand(4, 4),), runs=False)


class Twice(nn.Module):
    def __init__(self, sample: Any, op: Any) -> None:
        super().__init__()
        self.sample, self.op = sample, op

    def forward(self, x: Any) -> Any:
        s = self.sample
        return self.op(x, *s.args, **s.kwargs), self.op(x, *s.args, **s.kwargs)


def _operators() -> list[Any]:
    few = "add", "matmul", "var_mean", "split", "nn.functional.conv2d", "where", "linalg.svd"
    names = sorted({f"{info.name}:{info.variant_test_name}" for info in op_db})
    some = [n for n in names if n.removesuffix(":") in few]
    return some + sampled([n for n in names if n not in some], 40, seed=0)


# torch inserts assertions about sizes into their programs without recompiling them.
STALE = {"nonzero:", "tensor_split:", "unique:", "unique_consecutive:"}
OPERATORS = {f"{info.name}:{info.variant_test_name}": info for info in op_db}


@pytest.mark.parametrize("name", _operators())
def test_operators(name: str) -> None:
    info = OPERATORS[name]
    if torch.float32 not in info.dtypes:
        pytest.skip("not for float32")
    samples = operator_samples(info, torch.float32)
    stale = None if name in STALE else False
    for _, sample in zip(range(2), samples, strict=False):
        if isinstance(sample.input, torch.Tensor):
            assert_exports_as_torch(
                Twice(sample, info.op), (sample.input,), runs=False, stale=stale
            )
