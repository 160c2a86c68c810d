"""serialize against torch, byte for byte, on models in training."""

from __future__ import annotations

import pytest
import torch
from torch.export import export

pytest.importorskip("transformers")

from tests.support.exported import tokens, transformer
from tests.support.serialized import both_ways, both_ways_decomposed

pytestmark = pytest.mark.slow("each case is done by torch too")


@pytest.mark.parametrize("name", ["bert", pytest.param("gpt2", marks=pytest.mark.deep("further"))])
def test_transformer_in_training(name: str) -> None:
    # A second layer has the same operators, and takes torch as long again.
    program = export(transformer(name, layers=1).train(), (tokens(),), strict=False)
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
