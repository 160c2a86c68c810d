"""serialize against torch, byte for byte, on torch's own case collections."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.hop_db import hop_db

from tests.support.exported import (
    exportdb_cases,
    exported_or_skipped,
    module_db_cases,
    operator_samples,
)
from tests.support.serialized import both_ways

MODULES = {name: (sample, build) for name, sample, build in module_db_cases()}
HOPS = {info.name: info for info in hop_db}
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


@STRICT
@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb(name: str, strict: bool) -> None:
    case = exportdb_cases()[name]
    args, kwargs = case.example_args, case.example_kwargs or {}
    both_ways(
        exported_or_skipped(
            case.model, args, kwargs, dynamic_shapes=case.dynamic_shapes, strict=strict
        )
    )


@STRICT
@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_db(name: str, strict: bool) -> None:
    sample, build = MODULES[name]
    torch.manual_seed(0)
    both_ways(exported_or_skipped(build().eval(), sample.args, sample.kwargs, strict=strict))


class Call(torch.nn.Module):
    def __init__(self, op: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)

    def forward(self, x: torch.Tensor) -> object:
        args, kwargs = self.rest
        return self.op(x, *args, **kwargs)  # type: ignore[operator]


@STRICT
@pytest.mark.parametrize("name", sorted(HOPS))
def test_hop_db(name: str, strict: bool) -> None:
    info = HOPS[name]
    try:
        sample = next(operator_samples(info, torch.float32))
    except Exception as error:
        pytest.skip(f"torch has no sample for it: {type(error).__name__}")
    model = Call(info.op, sample.args, sample.kwargs)
    both_ways(exported_or_skipped(model, (sample.input,), strict=strict))
