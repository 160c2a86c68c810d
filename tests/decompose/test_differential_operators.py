"""torch's collection of operators."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.common_methods_invocations import op_db

from tests.support.decompose_cases import assert_decomposed_as_torch
from tests.support.exported import (
    exported_or_skipped,
    operator_samples,
)
from tests.support.sampled import sampled, turns

pytestmark = pytest.mark.deep("hundreds of programs, decomposed by torch and by us")


class Twice(nn.Module):
    """Two equal calls: the second is instantiated from the first, unless their keys differ."""

    def __init__(self, operator: Any, options: dict[str, Any]) -> None:
        super().__init__()
        self.operator = operator
        self.options = options

    def forward(self, *args: Any) -> Any:
        half = len(args) // 2
        first = self.operator(*args[:half], **self.options)
        return first, self.operator(*args[half:], **self.options)


_OPERATORS = {f"{info.name}_{info.variant_test_name}": info for info in op_db}
_FEW = ("add_", "addmm_", "bmm_", "nn.functional.gelu_", "native_layer_norm_", "var_mean_", "sort_")


_SOME = [*_FEW, *sampled(sorted({*_OPERATORS} - {*_FEW}), 24, seed=0)]


@pytest.mark.parametrize(("name", "table"), turns(_SOME, ["default", "empty"]))
def test_operators(name: str, table: str) -> None:
    info = _OPERATORS[name]
    if torch.float32 not in info.dtypes:
        pytest.skip("not for float32")
    sample = next(operator_samples(info, torch.float32))
    given = (sample.input, *sample.args)
    again = tuple(x.clone() if isinstance(x, torch.Tensor) else x for x in given)
    program = exported_or_skipped(Twice(info.op, sample.kwargs), given + again, strict=False)
    assert_decomposed_as_torch(program, table)
