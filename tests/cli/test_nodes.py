"""`fxpress inspect --node`: every node of a program can be asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.export import ExportedProgram

import fxpress
from fxpress._tools.cli import app
from fxpress._tools.inspect.nodes import find_nodes
from tests.support.exported import exportdb_cases, exportdb_program, skipped_unless_exported


class Lists(torch.nn.Module):
    """Operators that return a list, a tuple, and a list of which a part is used."""

    def forward(self, x: torch.Tensor) -> Any:
        first, second = x.chunk(2, dim=-1)
        values, places = x.sort()
        return first + second, values, places, x.unbind(0)[1]


def assert_all_are_found(program: ExportedProgram, path: Path) -> None:
    """Each call is found by its name, with the type of its tensor."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        found = find_nodes(path, node.name)
        assert found, node.name
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes = ", ".join(str(size) for size in value.shape)
            types = {kind for each in found for name, kind in each.outputs if name == node.name}
            assert types == {f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"}, node.name


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


@pytest.mark.slow("each program is exported by torch")
@pytest.mark.parametrize("name", sorted(exportdb_cases()))
def test_exportdb(name: str, tmp_path: Path) -> None:
    path = tmp_path / "file.pt2"
    with skipped_unless_exported():
        program = exportdb_program(name)
        torch.export.save(program, path)
    assert_all_are_found(program, path)
    assert app.run(["inspect", str(path)]) == 0
