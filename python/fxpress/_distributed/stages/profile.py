"""Measure the times of a program's operations, and store them as JSON."""

from __future__ import annotations

import dataclasses
import json
import statistics
import time
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._base.observing.text import counted_text, duration_text, html_table, printable
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.analysis import operations_of
from fxpress._distributed.stages.documents import read, sealed
from fxpress._distributed.stages.ends import Ends, copied, flat_inputs, state_of
from fxpress._distributed.stages.writes import storages_of
from fxpress._files.serde.hashing import graph_hash

FORMAT, VERSION = "fxpress profile", 1
_NANOSECONDS = 1e9
_RUNS = 5
_DIGITS = 12  # how many digits of a hash a repr shows
_SHOWN = 20  # how many operations a notebook shows


@dataclasses.dataclass(frozen=True)
class OperationTimes:
    """The times of the operations of a program. torch has no such class.

    Attributes:
        graph_hash: `fxpress.graph_hash` of the program.
        nanoseconds: the time of each operation of the program's top-level graph, in order.

    Example:
        >>> from fxpress import pipeline
        >>> times = pipeline.measure_times(program, program.example_inputs)
        >>> pipeline.OperationTimes.from_json(times.to_json()) == times
        True
    """

    graph_hash: str
    nanoseconds: tuple[int, ...]

    def __repr__(self) -> str:
        count = counted_text(len(self.nanoseconds), "operation")
        seconds = duration_text(sum(self.nanoseconds) / _NANOSECONDS)
        return (
            f"<OperationTimes: {count}, {seconds}, program {printable(self.graph_hash[:_DIGITS])}>"
        )

    def _repr_html_(self) -> str:
        times = sorted(enumerate(self.nanoseconds), key=lambda each: -each[1])[:_SHOWN]
        rows = [(f"{index:,}", duration_text(each / _NANOSECONDS)) for index, each in times]
        return html_table(f"{self!r}, the longest:", ("#operation", "#time"), rows)

    def to_json(self) -> str:
        """Return the profile as JSON text."""
        header = {"format": FORMAT, "version": VERSION, "graph_hash": self.graph_hash}
        return json.dumps(sealed({**header, "nanoseconds": list(self.nanoseconds)})) + "\n"

    @classmethod
    def from_json(cls, text: str) -> OperationTimes:
        """Parse the result of `to_json`.

        Args:
            text: the text, which is untrusted.

        Raises:
            StageError: the text is not a profile, or was changed.
        """
        fields = read(text, FORMAT, VERSION)
        profile = cls(fields.text("graph_hash"), fields.integers("nanoseconds"))
        fields.check_digest()
        fields.end()
        return profile


def measure_times(program: ExportedProgram, inputs: Any) -> OperationTimes:
    """Measure the time of each operation of a program on this machine. torch has no such function.

    A time is the median of five runs after one warm-up run. The program's state and the inputs are
    not changed. Measurements vary, so all processes that plan by time need to use one profile.

    Args:
        program: the program.
        inputs: (args, kwargs) to run it with, such as `program.example_inputs`.

    Raises:
        StageError: the inputs are None, their structure is not the program's, or the program does
            not run with them.

    Example:
        >>> from fxpress import pipeline
        >>> times = pipeline.measure_times(program, program.example_inputs)
        >>> pipeline.plan(program, 2, "time", profile=times).stages
        2
    """
    if inputs is None:
        raise StageError("there are no inputs to measure times with: pass inputs=(args, kwargs)")
    taken = seconds_of(program, inputs)
    nodes = operations_of(program.graph_module)
    return OperationTimes(
        graph_hash(program), tuple(int(taken[node] * _NANOSECONDS) + 1 for node in nodes)
    )


class _Timer(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph and records the seconds of each node."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: dict[Node, list[float]] = {}

    def run_node(self, n: Node) -> Any:
        """Run a node, and record its time."""
        start = time.perf_counter()
        value = super().run_node(n)
        self.seconds.setdefault(n, []).append(time.perf_counter() - start)
        return value


def seconds_of(program: ExportedProgram, inputs: Any) -> dict[Node, float]:
    """Return the median seconds of each node; StageError if the program does not run."""
    leaves = flat_inputs(program, inputs)
    if leaves is None:
        raise StageError("the example inputs do not have the structure of the program's inputs")
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
