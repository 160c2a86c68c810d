"""`fxpress inspect --node` finds every node of a program."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import fxpress
from fxpress._tools.cli import app
from tests.support.found import assert_all_are_found


class Lists(torch.nn.Module):
    """Operators that return a list, a tuple, and a list of which a part is used."""

    def forward(self, x: torch.Tensor) -> Any:
        first, second = x.chunk(2, dim=-1)
        values, places = x.sort()
        return first + second, values, places, x.unbind(0)[1]


def test_lists(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program, path = torch.export.export(Lists(), (torch.ones(2, 4),)), tmp_path / "lists.pt2"
    fxpress.save(program, path)
    assert_all_are_found(program, path)
    (unpacked,) = program.graph.find_nodes(op="call_function", target=torch.ops.aten.chunk.default)
    names = [user.name for user in unpacked.users]
    assert app.run(["inspect", str(path), "--node", names[1], "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["target"] == "torch.ops.aten.chunk.default"
    assert found["outputs"] == [[name, "float32[2, 2]"] for name in names]
