"""Time grows with the number of nodes and modules, not with their squares; depth costs no stack."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import ExportedProgram, export

from fxpress.unflatten import unflatten

STACK = "nn_module_stack"


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.child = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.child(x).neg()


def stretched(paths: list[list[str]], *, names: bool = True) -> ExportedProgram:
    """A program that calls the modules with these paths one after the other, two nodes each."""
    program = export(Small(), (torch.randn(1, 2),), strict=False)
    graph = program.graph
    output = graph.output_node()
    (value,) = output.args[0]
    meta = dict(value.meta)
    root = dict(list(meta[STACK].items())[:1])
    with graph.inserting_before(output):
        for index, path in enumerate(paths):
            stack = dict(root)
            for depth in range(len(path)):
                key = ".".join(path[: depth + 1])
                call = "" if names else f"@{index}"
                last = depth == len(path) - 1
                stack[f"L.{key}{call if last else ''}"] = (key, "some.Class")
            for target in (torch.ops.aten.relu.default, torch.ops.aten.neg.default):
                value = graph.call_function(target, (value,))
                value.meta = {**meta, STACK: stack}
    output.args = ((value,),)
    program.graph_signature.output_specs[0].arg.name = value.name
    program.graph_module.recompile()
    return program


def seconds(program: ExportedProgram) -> float:
    best = float("inf")
    for _ in range(3):
        gc.collect()
        start = time.process_time()
        unflatten(program)
        best = min(best, time.process_time() - start)
    return best


def chain(count: int) -> ExportedProgram:
    return stretched([["layers", str(i)] for i in range(count)])


def nested(count: int) -> ExportedProgram:
    return stretched([["layers", str(i // 16), "inner", str(i % 16)] for i in range(count)])


def repeated(count: int) -> ExportedProgram:
    """One module, called again and again, with the same graph each time."""
    return stretched([["layer"] for _ in range(count)], names=False)


@pytest.mark.parametrize("build", [chain, nested, repeated], ids=lambda b: b.__name__)
def test_near_linear(build: Any) -> None:
    small, large = seconds(build(250)), seconds(build(2_000))
    assert large / small < 8 * 3


def test_a_deep_tree() -> None:
    """Deeper than Python's stack allows a call for each level."""
    depth = 400
    path = [f"m{i}" for i in range(depth)]
    module = unflatten(stretched([path]))
    deepest = module.get_submodule(".".join(path))
    assert len(deepest.graph.nodes) == 4
    x = torch.randn(1, 2)
    assert module(x).shape == (1, 2)
