"""A program with many types of results and arguments, for writers and readers of graphs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export


class Mixed(nn.Module):
    """Several types of results, numbers, lists, a graph as an argument, a call without results."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: float, name: str = "n") -> tuple[Any, ...]:
        first, rest = x.split([1, x.shape[0] - 1])
        values, _ = x.topk(2)
        self.total.add_(first.sum())
        torch._check(x.shape[0] > 2)
        picked = torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (x,))
        size = x[0, 0].to(torch.int64).item()
        torch._check(size >= 0)
        made = torch.full((size,), 1.5)
        return self.linear(rest) * scale + x.shape[0], values, picked, made, x.max(0)[0]


def mixed_program(decomposed: bool = False) -> ExportedProgram:
    made = export(
        Mixed(),
        (torch.randn(6, 4), 2.0),
        dynamic_shapes={"x": {0: Dim("rows", min=3, max=64)}, "scale": None},
        strict=False,
    )
    return made.run_decompositions() if decomposed else made
