"""One model through all components: captured, unflattened, split, saved, loaded and run."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import fxpress
from fxpress.functional_export import check_constraints
from fxpress.serialize import deserialize, serialize
from fxpress.split_module import split_module
from fxpress.unflatten import unflatten
from tests.support.split_cases import consecutive


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        q, k, v = self.mix(x).chunk(3, dim=-1)
        return x + self.out(nn.functional.scaled_dot_product_attention(q, k, v))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(3))
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, scale: float = 2.0) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = layer(x)
        return {"y": self.norm(x) * scale, "n": x.sum()}


@pytest.mark.parametrize("check", ["guards", "light"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_through_all_components(tmp_path: Path, check: Any, dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Model().eval()
    x = torch.rand(2, 5, 8)
    shapes = {"x": {0: Dim("batch", max=32)}, "scale": None} if dynamic else None
    with fxpress.installed(), check_constraints(check):
        program = torch.export.export(model, (x, 3.0), dynamic_shapes=shapes, strict=True)
    expected = torch.export.export(model, (x, 3.0), dynamic_shapes=shapes, strict=True)
    assert fxpress.graph_hash(program) == fxpress.graph_hash(expected)
    assert not fxpress.diff(program, expected)

    file = tmp_path / "model.pt2"
    fxpress.save(program, file)
    loaded = fxpress.load(file)
    again = deserialize(serialize(loaded))
    assert fxpress.graph_hash(again) == fxpress.graph_hash(program)
    buffer = io.BytesIO()
    torch.export.save(loaded, buffer)
    by_torch = torch.export.load(io.BytesIO(buffer.getvalue()))

    with torch.no_grad():
        result = program.module()(x, 3.0)
        for each in (loaded, again, by_torch):
            torch.testing.assert_close(unflatten(each)(x, 3.0), result)
        graph_module = loaded.module()
        parts = consecutive(graph_module.graph, 7)
        split = split_module(graph_module, None, lambda node: parts[node])
        torch.testing.assert_close(split(x, 3.0), tuple(result.values()))
