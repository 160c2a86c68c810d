"""module() against torch, on real architectures."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

pytest.importorskip("transformers")

from tests.support.exported import architectures, skipped_unless_exported, transformer_configs
from tests.support.unlifted import assert_module_as_torch
from tests.unflatten.test_differential_models import model_of, tokens

pytestmark = pytest.mark.deep("models of transformers, exported and decomposed")


@pytest.mark.parametrize("name", architectures())
def test_transformer(name: str) -> None:
    program = export(model_of(transformer_configs()[name]), (tokens(),), strict=False)
    assert_module_as_torch(program, (tokens(),))


@pytest.mark.parametrize("name", architectures())
def test_transformer_decomposed(name: str) -> None:
    program = export(model_of(transformer_configs()[name]), (tokens(),), strict=False)
    with skipped_unless_exported():
        program = program.run_decompositions()
    assert_module_as_torch(program, (tokens(),))


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_transformer_strict(name: str) -> None:
    with skipped_unless_exported():
        program = export(model_of(transformer_configs()[name]), (tokens(),), strict=True)
    assert_module_as_torch(program, (tokens(),))


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_dynamic_sequence(name: str) -> None:
    model = model_of(transformer_configs()[name])
    program = export(model, (tokens(),), strict=False, dynamic_shapes=({1: Dim.DYNAMIC},))
    ours = assert_module_as_torch(program, (tokens(),))
    longer = torch.randint(0, 64, (2, 13), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        torch.testing.assert_close(ours(longer)[0], model(longer)[0])
