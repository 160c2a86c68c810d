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


@pytest.mark.parametrize("name", architectures())
def test_transformer(name: str) -> None:
    model = model_of(transformer_configs()[name])
    with skipped_unless_exported():
        program = export(model, (tokens(),), strict=False)
    both_ways(program)
    both_ways_decomposed(program)


@pytest.mark.parametrize("name", architectures())
def test_transformer_exported_strictly(name: str) -> None:
    model = model_of(transformer_configs()[name])
    with skipped_unless_exported():
        program = export(model, (tokens(),), strict=True)
    both_ways(program)


@pytest.mark.deep("the decompositions of the other exports give nearly the same graphs")
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_transformer_exported_strictly_and_decomposed(name: str) -> None:
    both_ways_decomposed(export(model_of(transformer_configs()[name]), (tokens(),), strict=True))


@pytest.mark.parametrize("name", architectures("llama"))
def test_transformer_with_a_dynamic_batch(name: str) -> None:
    model = model_of(transformer_configs()[name])
    shapes = ({0: Dim("batch", min=2, max=64)},)
    with skipped_unless_exported():
        program = export(model, (tokens(),), dynamic_shapes=shapes, strict=False)
    both_ways(program)
    both_ways_decomposed(program)


@pytest.mark.parametrize("name", architectures("bert"))
def test_transformer_in_training(name: str) -> None:
    model = model_of(transformer_configs()[name]).train()
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
