"""Measure how long each operation of a program takes."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._distributed.stages.ends import Ends, copied, flat_inputs, state_of
from fxpress._distributed.stages.errors import StageError
from fxpress._distributed.stages.writes import storages_of

_RUNS = 5


class _Timer(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph and notes the seconds of each node."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[Node, list[float]] = {}

    def run_node(self, n: Node) -> Any:
        """Return the value of a node."""
        start = time.perf_counter()
        value = super().run_node(n)
        self.seconds.setdefault(n, []).append(time.perf_counter() - start)
        return value


def seconds_of(program: ExportedProgram, inputs: Any) -> dict[Node, float]:
    """Return the seconds that each node takes: the median of a few runs, after one that warms up.

    The program's state and the inputs stay as they are: runs write to copies. StageError is raised
    for inputs with which the program does not run.
    """
    leaves = flat_inputs(program, inputs)
    if leaves is None:
        raise StageError("the example inputs are not of the program's structure")
    ends, state = Ends(program), state_of(program)
    values = {node: state[str(spec.target)] for node, spec in ends.state.items()}
    values |= dict(zip(ends.inputs, leaves, strict=True))
    changed = {node for node, storage in storages_of(program.graph).items() if storage.writing}
    timer = _Timer(program.graph_module)
    with torch.no_grad():
        for run in range(_RUNS + 1):
            if run == 1:
                timer.seconds.clear()
            given = [
                copied(values[node]) if node in changed else values[node]
                for node in program.graph.nodes
                if node.op == "placeholder"
            ]
            try:
                timer.run(*given, enable_io_processing=False)
            except Exception as error:
                raise StageError(f"the program does not run with the inputs: {error}") from error
    return {node: statistics.median(seconds) for node, seconds in timer.seconds.items()}
