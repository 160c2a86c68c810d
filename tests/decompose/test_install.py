"""torch's method while fxpress is installed."""

from __future__ import annotations

import torch
from torch.export import exported_program

import fxpress
from fxpress import decompose
from tests.support.decompose_cases import program_of
from tests.support.decomposed import assert_same_program


def test_the_method_calls_ours() -> None:
    program = program_of("deep")
    before = exported_program._decompose_exported_program
    theirs = [program.run_decompositions(), program.run_decompositions({})]
    decompose.forget_templates()
    with fxpress.installed():
        assert exported_program._decompose_exported_program is not before
        ours = [program.run_decompositions(), program.run_decompositions({})]
        assert decompose.report().instantiated > 0
    assert exported_program._decompose_exported_program is before
    for mine, other in zip(ours, theirs, strict=True):
        assert_same_program(mine, other)


def test_tables_of_torch_use_ours() -> None:
    expected = torch.export.default_decompositions().materialize()
    with fxpress.installed():
        table = torch.export.default_decompositions().materialize()
    assert table.keys() == expected.keys()
