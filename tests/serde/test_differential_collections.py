"""serialize against torch, byte for byte, on torch's own case collections."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.export import ExportedProgram
from torch.testing._internal.hop_db import hop_db

from tests.support.exported import (
    exportdb_cases,
    exported_or_skipped,
    module_db_cases,
    operator_samples,
)
from tests.support.serialized import both_ways, both_ways_decomposed

pytestmark = pytest.mark.slow("each case is done by torch too")

MODULES = {name: (sample, build) for name, sample, build in module_db_cases()}
HOPS = {info.name: info for info in hop_db}


def from_exportdb(name: str, strict: bool) -> ExportedProgram:
    case = exportdb_cases()[name]
    args, kwargs = case.example_args, case.example_kwargs or {}
    return exported_or_skipped(
        case.model, args, kwargs, dynamic_shapes=case.dynamic_shapes, strict=strict
    )


def from_module_db(name: str, strict: bool) -> ExportedProgram:
    sample, build = MODULES[name]
    torch.manual_seed(0)
    return exported_or_skipped(build().eval(), sample.args, sample.kwargs, strict=strict)


class Call(torch.nn.Module):
    def __init__(self, op: object, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)

    def forward(self, x: torch.Tensor) -> object:
        args, kwargs = self.rest
        return self.op(x, *args, **kwargs)  # type: ignore[operator]


def from_hop_db(name: str, strict: bool) -> ExportedProgram:
    info = HOPS[name]
    try:
        sample = next(operator_samples(info, torch.float32))
    except Exception as error:
        pytest.skip(f"torch has no sample for it: {type(error).__name__}")
    model = Call(info.op, sample.args, sample.kwargs)
    return exported_or_skipped(model, (sample.input,), strict=strict)


COLLECTIONS: dict[str, tuple[Callable[[str, bool], ExportedProgram], list[str]]] = {
    "exportdb": (from_exportdb, sorted(exportdb_cases())),
    "module_db": (from_module_db, sorted(MODULES)),
    "hop_db": (from_hop_db, sorted(HOPS)),
}
CASES = pytest.mark.parametrize(
    ("collection", "name"), [(each, name) for each in COLLECTIONS for name in COLLECTIONS[each][1]]
)


@CASES
def test_exported(collection: str, name: str) -> None:
    program = COLLECTIONS[collection][0](name, False)
    both_ways(program)
    both_ways_decomposed(program)


@CASES
def test_exported_strictly(collection: str, name: str) -> None:
    both_ways(COLLECTIONS[collection][0](name, True))


@pytest.mark.deep("the decompositions of the other exports give nearly the same graphs")
@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exported_strictly_and_decomposed(name: str) -> None:
    both_ways_decomposed(from_exportdb(name, True))
