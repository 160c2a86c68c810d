"""Small programs, and functions that edit their files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from fxpress.serialize import SerializedArtifact


class Top(nn.Module):
    """Two results of one operator, a parameter and a buffer that is written."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(1)
        values, indices = self.linear(x).topk(2)
        return values + self.count, indices


def top() -> ExportedProgram:
    torch.manual_seed(0)
    return export(Top(), (torch.randn(3, 4),), strict=False)


def dynamic() -> ExportedProgram:
    rows = {0: Dim("rows", min=2, max=64)}
    return export(Top(), (torch.randn(3, 4),), dynamic_shapes=(rows,), strict=False)


def edited(artifact: SerializedArtifact, edit: Callable[[Any], None]) -> SerializedArtifact:
    stored = json.loads(artifact.exported_program)
    edit(stored)
    return replace(artifact, exported_program=json.dumps(stored).encode())


def nodes_of(stored: Any) -> Any:
    return stored["graph_module"]["graph"]["nodes"]


def node_of(stored: Any, target: str) -> Any:
    return next(n for n in nodes_of(stored) if target in n["target"])
