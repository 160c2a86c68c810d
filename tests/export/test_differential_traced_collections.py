"""Exports beside torch's, on torch's own collections of cases."""

from __future__ import annotations

import pytest
import torch
from torch.testing._internal.hop_db import hop_db

from tests.corpus.programs import Call
from tests.support.exported import (
    exportdb_cases,
    module_db_cases,
    operator_samples,
    skipped_unless_exported,
)
from tests.support.programs import assert_exports_as_torch

pytestmark = pytest.mark.deep("hundreds of exports by torch and by us")

STRICT = pytest.mark.parametrize(
    "strict",
    [
        pytest.param(False, id="nonstrict"),
        pytest.param(True, id="strict", marks=pytest.mark.deep("Dynamo traces each model twice")),
    ],
)


@STRICT
@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb(name: str, strict: bool) -> None:
    case = exportdb_cases()[name]
    assert_exports_as_torch(
        case.model,
        case.example_args,
        case.example_kwargs,
        dynamic_shapes=case.dynamic_shapes,
        strict=strict,
    )


MODULES = {name: (given, build) for name, given, build in module_db_cases()}


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_db(name: str) -> None:
    given, build = MODULES[name]
    torch.manual_seed(0)
    assert_exports_as_torch(build().eval(), given.args, given.kwargs)


HOPS = {info.name: info for info in hop_db}


@STRICT
@pytest.mark.parametrize("name", sorted(HOPS))
def test_hop_db(name: str, strict: bool) -> None:
    info = HOPS[name]
    with skipped_unless_exported():
        sample = next(operator_samples(info, torch.float32))
    model = Call(info.op, sample.args, sample.kwargs)
    # torch inserts an assertion into its program without recompiling it.
    stale = name == "while_loop_stack_output"
    assert_exports_as_torch(model, (sample.input,), strict=strict, stale=stale)
