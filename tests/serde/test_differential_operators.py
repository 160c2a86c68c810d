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

# Every operator that takes floats or integers, under its name and variant.
OPERATORS = {
    f"{info.name}.{info.variant_test_name}".rstrip("."): info
    for info in op_db
    if {torch.float32, torch.int64} & set(info.dtypes)
}
GROUPS = 24
SAMPLES = 2  # of each operator


class Call(torch.nn.Module):
    def __init__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)

    def forward(self, x: Any) -> Any:
        args, kwargs = self.rest
        return self.op(x, *args, **kwargs)


def written(name: str) -> int:
    """How many samples of the operator torch exports and both write alike."""
    info = OPERATORS[name]
    dtype = torch.float32 if torch.float32 in info.dtypes else torch.int64
    count = 0
    samples = operator_samples(info, dtype)
    for sample in itertools.islice(samples, SAMPLES):
        model = Call(info.op, sample.args, sample.kwargs)
        try:
            program = export(model, (sample.input,), strict=False)
        except Exception:
            continue
        try:
            assert_travels_as_torch(program)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error
        count += 1
    return count


@pytest.mark.parametrize("group", range(GROUPS))
def test_op_db(group: int) -> None:
    names = sorted(OPERATORS)[group::GROUPS]
    assert len(OPERATORS) >= 300
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        done = [name for name in names if written(name)]
    assert len(done) >= len(names) // 2, sorted(set(names) - set(done))
