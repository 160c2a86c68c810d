"""Captures compared with torch's, for torch's collections of cases and real models."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim, ExportedProgram, export

import fxpress
from tests.support.captured import assert_captures_as_torch, outcome
from tests.support.exported import exportdb_cases, module_db_cases, tokens, transformer
from tests.support.sampled import sampled

pytestmark = pytest.mark.slow("each case is done by torch too")


@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb(name: str) -> None:
    case = exportdb_cases()[name]
    assert_captures_as_torch(case.model, case.example_args, case.example_kwargs)


# The corpus compares strict exports of all modules, which capture them too.
@pytest.mark.parametrize("name", sampled(sorted(module_db_cases()), 24, seed=0))
def test_module_db(name: str) -> None:
    given, build = module_db_cases()[name]
    torch.manual_seed(0)
    assert_captures_as_torch(build().eval(), given.args, given.kwargs)


# `tests/tracking/test_reuse_models.py` compares captures with repeated layers.
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_transformers(name: str) -> None:
    pytest.importorskip("transformers")
    assert_captures_as_torch(transformer(name), (tokens(),))


def strictly_exported(*args: Any, **options: Any) -> list[ExportedProgram | Exception]:
    """By us and by torch."""
    exported = functools.partial(export, *args, strict=True, **options)
    with fxpress.installed():
        ours = outcome(exported)
    return [ours, outcome(exported)]


def assert_same_programs(ours: Any, theirs: Any) -> None:
    if isinstance(theirs, Exception):
        assert (type(ours), str(ours)) == (type(theirs), str(theirs))
        return
    assert str(ours) == str(theirs)
    assert ours.graph_signature == theirs.graph_signature
    assert list(ours.state_dict) == list(theirs.state_dict)
    assert str(ours.range_constraints) == str(theirs.range_constraints)
    for mine, other in zip(ours.graph.nodes, theirs.graph.nodes, strict=True):
        for key in ("stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn"):
            assert mine.meta.get(key) == other.meta.get(key), (mine, key)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_strict_export_with_a_dynamic_batch(name: str) -> None:
    pytest.importorskip("transformers")
    shapes = ({0: Dim("batch", min=2, max=64)},)
    ours, theirs = strictly_exported(transformer(name), (tokens(),), dynamic_shapes=shapes)
    assert isinstance(theirs, ExportedProgram), theirs
    assert_same_programs(ours, theirs)


class Cut(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        if a.shape[0] > 4:
            a = a[:4]
        return a.reshape(2, 2, -1).sum() + b


@pytest.mark.parametrize(
    "shapes",
    [
        ({0: Dim("n")}, None),
        ({0: Dim("n", max=3)}, None),
        ({0: Dim.AUTO, 1: Dim.DYNAMIC}, {0: Dim.AUTO}),
        ({1: Dim("m", min=2)}, {0: Dim("m")}),
    ],
)
def test_constraints_that_do_not_hold(shapes: Any) -> None:
    args = (torch.rand(4, 3), torch.rand(3))
    assert_same_programs(*strictly_exported(Cut(), args, dynamic_shapes=shapes))
