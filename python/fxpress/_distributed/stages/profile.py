"""Times of the operations of a program, measured once and kept as a text."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from torch.export import ExportedProgram

from fxpress._distributed.stages.documents import read, sealed
from fxpress._distributed.stages.errors import StageError
from fxpress._distributed.stages.order import operations_of
from fxpress._distributed.stages.timing import seconds_of
from fxpress._files.serde.hashing import graph_hash

FORMAT, VERSION = "fxpress profile", 1
_NANOSECONDS = 1e9


@dataclasses.dataclass(frozen=True)
class OperationTimes:
    """How long the operations of a program take. torch has no such class.

    Attributes:
        graph_hash: `fxpress.graph_hash` of the program.
        nanoseconds: for each operation of its own graph, in order.

    Example:
        >>> from fxpress import pipeline
        >>> times = pipeline.measure_times(program, program.example_inputs)
        >>> pipeline.OperationTimes.from_json(times.to_json()) == times
        True
    """

    graph_hash: str
    nanoseconds: tuple[int, ...]

    def to_json(self) -> str:
        """Return the profile as a text."""
        return json.dumps(sealed(self._content())) + "\n"

    @classmethod
    def from_json(cls, text: str) -> OperationTimes:
        """Return the profile that `to_json` gave a text of.

        Args:
            text: the text, which may come from anywhere.

        Raises:
            StageError: the text is no profile, or is not as it was written.
        """
        fields = read(text, FORMAT, VERSION)
        profile = cls(fields.text("graph_hash"), fields.integers("nanoseconds"))
        fields.end_sealed(profile._content())
        return profile

    def _content(self) -> dict[str, Any]:
        times = list(self.nanoseconds)
        header = {"format": FORMAT, "version": VERSION}
        return {**header, "graph_hash": self.graph_hash, "nanoseconds": times}


def measure_times(program: ExportedProgram, inputs: Any) -> OperationTimes:
    """Measure how long each operation of a program takes here. torch has no such function.

    It is the median of five runs, after one that warms up. The program's state and the inputs stay
    as they are. Two measurements differ, so that processes that plan by time need one profile.

    Args:
        program: the program.
        inputs: (args, kwargs) to run it with, such as `program.example_inputs`.

    Raises:
        StageError: the inputs are None, they have another structure than the program's, or the
            program does not run with them.

    Example:
        >>> from fxpress import pipeline
        >>> times = pipeline.measure_times(program, program.example_inputs)
        >>> pipeline.plan(program, 2, "time", profile=times).stages
        2
    """
    if inputs is None:
        raise StageError("times are measured with example inputs, and there are none: give inputs=")
    taken = seconds_of(program, inputs)
    nodes = operations_of(program.graph_module)
    return OperationTimes(
        graph_hash(program), tuple(int(taken[node] * _NANOSECONDS) + 1 for node in nodes)
    )
