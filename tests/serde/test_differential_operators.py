"""serialize against torch, byte for byte, on the operators of torch's op_db."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.export import export
from torch.testing._internal.common_methods_invocations import op_db

from tests.support.exported import operator_samples
from tests.support.serialized import assert_travels_as_torch

pytestmark = pytest.mark.slow("each case is done by torch too")

# Every operator that takes floats or integers, under its name and variant.
OPERATORS = {
    f"{info.name}.{info.variant_test_name}".rstrip("."): info
    for info in op_db
    if {torch.float32, torch.int64} & set(info.dtypes)
}
GROUPS = 24
SAMPLES = [0, pytest.param(1, marks=pytest.mark.deep("second samples of the same operators"))]


class Call(torch.nn.Module):
    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)

    def forward(self, x: Any) -> Any:
        args, kwargs = self.rest
        return self.op(x, *args, **kwargs)


def is_written(name: str, number: int) -> bool:
    """Whether torch exports this sample of the operator; then both write it alike."""
    info = OPERATORS[name]
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
    for sample in itertools.islice(operator_samples(info, dtype), number, number + 1):
        model = Call(info.op, sample.args, sample.kwargs)
        try:
            program = export(model, (sample.input,), strict=False)
        except Exception:
            return False
        try:
            assert_travels_as_torch(program)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        return True
    return False


@pytest.mark.parametrize("group", range(GROUPS))
@pytest.mark.parametrize("sample", SAMPLES)
def test_op_db(sample: int, group: int) -> None:
    names = sorted(OPERATORS)[group::GROUPS]
    assert len(OPERATORS) >= 300
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = [name for name in names if is_written(name, sample)]
    assert len(done) >= len(names) // 3, sorted(set(names) - set(done))
