"""Data over nodes: times of runs, what reports say, kinds of operators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

import fxpress
from fxpress import decompose
from fxpress._tools.view.data import _path
from fxpress._tools.view.overlays import Overlay
from fxpress.functional_export import reuse_report
from fxpress.view import data


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.sum()


X = torch.ones(2, 4)


@pytest.fixture
def program() -> ExportedProgram:
    return export(Layers(), (X,))


def values_of(overlay: Overlay) -> dict[str, Any]:
    (graph,) = overlay.values()
    return {node: each["value"] for node, each in graph["results"].items()}


def test_each_operator_has_a_time(program: ExportedProgram) -> None:
    times = values_of(data.times(program, X, runs=2))
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    assert list(times) == [f"node {number}" for number in range(len(calls))]
    assert all(time > 0 for time in times.values())
    with pytest.raises(ValueError, match="positive"):
        data.times(program, X, runs=0)


def test_times_are_of_the_operators() -> None:
    class Uneven(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x.sin() @ x).cos() @ x[:, :1]

    large = torch.ones(1500, 1500)
    times = values_of(data.times(export(Uneven(), (large,)), large))
    assert max(times, key=lambda node: times[node]) == "node 1"


def test_what_a_capture_says() -> None:
    with fxpress.installed():
        program = export(Layers(), (X,), strict=True)
    report = reuse_report()
    assert report.instantiated
    found = values_of(data.reuse(program, report))
    calls = [node for node in program.graph.nodes if node.op == "call_function"]
    for number, node in enumerate(calls):
        stack = node.meta.get("nn_module_stack", {})
        path = list(stack.values())[-1][0] if stack else ""
        around = [c for c in report.calls if f"{path}.".startswith(f"{_path(c.path)}.")]
        inner = max(around, key=lambda call: len(call.path), default=None)
        if inner is not None and inner.instantiated_from is not None:
            assert found[f"node {number}"] == f"instantiated from {_path(inner.instantiated_from)}"
        elif inner is not None:
            assert found[f"node {number}"] == f"traced: {inner.reason}"


def test_what_a_decomposition_says(program: ExportedProgram) -> None:
    decomposed = decompose.run_decompositions(program)
    report = decompose.report()
    assert report.by_operator["aten.linear.default"] == 4
    found = values_of(data.decomposition(decomposed, report))
    calls = [node for node in decomposed.graph.nodes if node.op == "call_function"]
    for number, node in enumerate(calls):
        if "addmm" in str(node.target):
            assert (
                found[f"node {number}"]
                == "of all 4 calls of aten.linear.default, 4 were instantiated"
            )


def test_kinds(program: ExportedProgram) -> None:
    kinds = values_of(data.overlays(program)["kind of operator"])
    assert list(kinds.values()) == [
        *["matrix product, convolution, attention", "activation"] * 4,
        "reduction",
    ]
    assert "partition" not in data.overlays(program)


def test_files_are_written(program: ExportedProgram, tmp_path: Path) -> None:
    overlays = data.overlays(program)
    paths = data.write_overlays(tmp_path / "new", overlays)
    assert [json.loads(path.read_text()) for path in paths] == list(overlays.values())
    assert paths[0].name == "bytes_of_state.json"
    first, second = data.difference(program, program)
    assert set(values_of(first).values()) == set(values_of(second).values()) == {"same"}
