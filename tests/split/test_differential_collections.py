"""Split against torch on torch's own case collections."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.export import export

from tests.support.exported import (
    exportdb_cases,
    exportdb_program,
    module_db_cases,
    skipped_unless_exported,
)
from tests.support.split_cases import assert_split_as_torch, consecutive, levels

pytestmark = pytest.mark.slow("each case is done by torch too")

MODULES = {name: (sample, build) for name, sample, build in module_db_cases()}


def assert_splits(module: torch.fx.GraphModule) -> None:
    for size in (1, 3):
        assert_split_as_torch(module, consecutive(module.graph, size).__getitem__)
    kept = {"keep_original_order": True, "keep_original_node_name": True, "tuple_return": True}
    assert_split_as_torch(module, consecutive(module.graph, 2).__getitem__, **kept)
    assert_split_as_torch(module, levels(module.graph, 3, seed=0).__getitem__)


@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb(name: str) -> None:
    with skipped_unless_exported():
        program = exportdb_program(name)
    assert_splits(program.module())
    assert_splits(program.graph_module)


@pytest.mark.parametrize("name", sorted(MODULES))
def test_module_db(name: str) -> None:
    sample, build = MODULES[name]
    module = build().eval()
    with skipped_unless_exported():
        program = export(module, sample.args, sample.kwargs, strict=False)
    split = program.module()
    assert_splits(split)
    ours = assert_split_as_torch(split, consecutive(split.graph, 2).__getitem__)
    assert ours is not None
    ours.graph.set_codegen(split.graph._codegen)
    ours.recompile()
    try:
        expected = seeded(split, sample)
    except RuntimeError as error:
        pytest.skip(f"torch does not run the exported program: {error}")
    torch.testing.assert_close(seeded(ours, sample), expected, rtol=0, atol=0, equal_nan=True)


def seeded(program: torch.fx.GraphModule, sample: Any) -> list[Any]:
    torch.manual_seed(0)  # some modules draw numbers
    return torch.utils._pytree.tree_leaves(program(*sample.args, **sample.kwargs))
