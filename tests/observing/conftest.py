"""A program, and the inputs of all operations."""

from __future__ import annotations

import pytest
import torch
from torch.export import ExportedProgram, export


class Block(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


def model() -> torch.nn.Module:
    return torch.nn.Sequential(Block(), Block()).eval()


@pytest.fixture(scope="session")
def program() -> ExportedProgram:
    return export(model(), (torch.ones(2, 4),), strict=False)
