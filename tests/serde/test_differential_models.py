"""serialize against torch, byte for byte, on real architectures."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim, export

pytest.importorskip("transformers")

from tests.support.exported import architectures, skipped_unless_exported, transformer_configs
from tests.support.serialized import both_ways, both_ways_decomposed
from tests.unflatten.test_differential_models import model_of, tokens

pytestmark = pytest.mark.slow("each case is done by torch too")

LAYERS = 1  # a second one has the same operators, and takes torch as long again


@pytest.mark.parametrize("name", architectures())
def test_transformer(name: str) -> None:
    model = model_of(transformer_configs(LAYERS)[name])
    with skipped_unless_exported():
        program = export(model, (tokens(),), strict=False)
    both_ways(program)
    both_ways_decomposed(program)


@pytest.mark.parametrize("name", architectures())
def test_transformer_exported_strictly(name: str) -> None:
    model = model_of(transformer_configs(LAYERS)[name])
    with skipped_unless_exported():
        program = export(model, (tokens(),), strict=True)
    both_ways(program)


@pytest.mark.parametrize(
    "name", ["llama", pytest.param("gpt2", marks=pytest.mark.deep("further architectures"))]
)
def test_transformer_with_a_dynamic_batch(name: str) -> None:
    model = model_of(transformer_configs(LAYERS)[name])
    shapes = ({0: Dim("batch", min=2, max=64)},)
    with skipped_unless_exported():
        program = export(model, (tokens(),), dynamic_shapes=shapes, strict=False)
    both_ways(program)
    both_ways_decomposed(program)


@pytest.mark.parametrize("name", architectures("bert"))
def test_transformer_in_training(name: str) -> None:
    model = model_of(transformer_configs(LAYERS)[name]).train()
    program = export(model, (tokens(),), strict=False)
    both_ways(program)
    both_ways_decomposed(program)


def test_joint_graph_with_loss() -> None:
    class Loss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).sum()

    program = export(Loss(), (torch.randn(3, 4),), strict=False)
    both_ways(program)
    both_ways_decomposed(program)
