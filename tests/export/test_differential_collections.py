"""module() against torch, on torch's own case collections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing._internal.hop_db import hop_db

from tests.support.exported import (
    exportdb_cases,
    exported_or_skipped,
    module_db_cases,
    operator_samples,
    skipped_unless_exported,
)
from tests.support.unlifted import assert_module_as_torch

pytestmark = pytest.mark.deep("hundreds of programs, each unlifted by torch and by us")

MODULES = {name: (sample, build) for name, sample, build in module_db_cases()}
OPERATORS = {info.name: info for info in hop_db}
STRICT = pytest.mark.parametrize("strict", [False, True], ids=["nonstrict", "strict"])


@STRICT
@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb(name: str, strict: bool) -> None:
    case = exportdb_cases()[name]
    args, kwargs = case.example_args, case.example_kwargs or {}
    program = exported_or_skipped(
        case.model, args, kwargs, dynamic_shapes=case.dynamic_shapes, strict=strict
    )
    assert_module_as_torch(program, args, kwargs)


@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb_decomposed(name: str) -> None:
    case = exportdb_cases()[name]
    args, kwargs = case.example_args, case.example_kwargs or {}
    program = exported_or_skipped(case.model, args, kwargs, dynamic_shapes=case.dynamic_shapes)
    with skipped_unless_exported():
        program = program.run_decompositions()
    assert_module_as_torch(program, args, kwargs)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_db(name: str) -> None:
    sample, build = MODULES[name]
    torch.manual_seed(0)
    program = exported_or_skipped(build().eval(), sample.args, sample.kwargs, strict=False)
    assert_module_as_torch(program, sample.args, sample.kwargs)


class Call(torch.nn.Module):
    """Calls an operator on what a parameter was multiplied with."""

    def __init__(self, op: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)
        self.scale = torch.nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> object:
        args, kwargs = self.rest
        return self.op(x * self.scale, *args, **kwargs)


@STRICT
@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_hop_db(name: str, strict: bool) -> None:
    info = OPERATORS[name]
    with skipped_unless_exported():
        sample = next(operator_samples(info, torch.float32))
        model = Call(info.op, sample.args, sample.kwargs)
        program = torch.export.export(model, (sample.input,), strict=strict)
    assert_module_as_torch(program, (sample.input,))
