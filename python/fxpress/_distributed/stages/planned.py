"""Define `Plan`, a division of a program into stages, which can be stored as JSON."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, get_args

from torch.export import ExportedProgram

from fxpress._base.errors import NoRendererError
from fxpress._base.observing.text import html_table
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.analysis import operations_of
from fxpress._distributed.stages.costs import By
from fxpress._distributed.stages.documents import Fields, digest_of, read, sealed
from fxpress._distributed.stages.ends import state_of
from fxpress._graphs.partition.callback import SplitCallback
from fxpress._graphs.partition.draw import draw
from fxpress._graphs.split.split_module import split_module

FORMAT, VERSION = "fxpress plan", 1


@dataclasses.dataclass(frozen=True)
class Shared:
    """State of which several stages have a copy. torch has no such class.

    Attributes:
        names: the names of one storage, in the order in which the program first uses them.
        stages: the numbers of the stages that use the storage.
        is_parameter: whether one of the names is a parameter, whose gradients have to be summed.

    Example:
        >>> from fxpress import pipeline
        >>> pipeline.plan(program, 2).shared  # the model has no weight twice
        ()
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]
    is_parameter: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """The cuts of a program into stages. torch has no such class.

    A stage contains consecutive operations of the program's top-level graph, from the end of the
    previous stage on. Equal programs get equal plans in every process.

    Attributes:
        by: the weight that the stages balance.
        graph_hash: `fxpress.graph_hash` of the program.
        operations: the number of the program's operations.
        ends: for each stage, the index of the first operation after the stage; the last index
            equals `operations`.
        weights: for each stage, its weight in the unit of `by`: nanoseconds for "time", elements of
            parameters for "module".
        state_bytes: for each stage, the bytes of its parameters, buffers and constants; a storage
            with several names counts once.
        activation_bytes: for each stage, the peak bytes of all other values that are live at once
            when it runs without gradients. Values that only pass through the stage count, too.
        crossing_bytes: for each cut, the bytes of the values that pass it: the values and inputs of
            the program that a later stage uses, and the results of the program, which the last
            stage returns.
        shared: the state that several stages use.

    Example:
        >>> from fxpress import pipeline
        >>> found = pipeline.plan(program, 2)
        >>> found.stages, pipeline.Plan.from_json(found.to_json()) == found
        (2, True)
    """

    by: str
    graph_hash: str
    operations: int
    ends: tuple[int, ...]
    weights: tuple[int, ...]
    state_bytes: tuple[int, ...]
    activation_bytes: tuple[int, ...]
    crossing_bytes: tuple[int, ...]
    shared: tuple[Shared, ...]

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.ends)

    @property
    def memory(self) -> tuple[int, ...]:
        """For each stage, the bytes of its state plus the bytes of its activations."""
        return tuple(map(sum, zip(self.state_bytes, self.activation_bytes, strict=True)))

    def stage_of(self, program: ExportedProgram) -> SplitCallback:
        """Return the stage of each operation, as a callback for `split_module`.

        Args:
            program: the program that the plan is for, see `check`.

        Raises:
            StageError: the program has another number of operations.
        """
        nodes = operations_of(program.graph_module)
        if len(nodes) != self.operations:
            raise StageError(
                f"the plan is for another program: it has {self.operations} operations, but"
                f" this program has {len(nodes)}"
            )
        stages = {
            node: stage
            for stage, (start, end) in enumerate(pairwise([0, *self.ends]))
            for node in nodes[start:end]
        }
        return SplitCallback(stages, f"plan(stages={self.stages}, by={self.by!r})")

    def picture(self, program: ExportedProgram) -> str | None:
        """Return the stages and the values between them as an SVG file.

        Args:
            program: the program that the plan is for, see `check`.

        Returns:
            The text of the file; None without the extra `draw`.

        Raises:
            StageError: the program has another number of operations.
            RuntimeError: Graphviz fails.
        """
        return picture_of(program, self.stage_of(program))

    def report(self) -> str:
        """Return a table of the stages, and one line for each item of `shared`, as text.

        The last column has the bytes that pass from a stage to the next one.
        """
        columns, notes = self._table()
        texts = [[heading, *(f"{each:,}" for each in values)] for heading, values in columns]
        widths = [max(map(len, column)) for column in texts]
        lines = [
            "  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True))
            for row in zip(*texts, strict=True)
        ]
        return "\n".join([*lines, *notes])

    def _repr_html_(self) -> str:
        columns, notes = self._table()
        title = f"{self.stages} stages of {self.operations:,} operations by {self.by}"
        texts = [[f"{each:,}" for each in values] for _, values in columns]
        rows = zip(*texts, strict=True)
        return html_table("\n".join([title, *notes]), [f"#{head}" for head, _ in columns], rows)

    def _table(self) -> tuple[list[tuple[str, Sequence[int]]], list[str]]:
        """Return headings with values for each stage, and a line for each shared state."""
        unit = "parameters" if self.by == "module" else "ns" if self.by == "time" else self.by
        columns: list[tuple[str, Sequence[int]]] = [
            ("stage", range(self.stages)),
            ("operations", [end - start for start, end in pairwise([0, *self.ends])]),
            (unit, self.weights),
            ("state", self.state_bytes),
            ("activations", self.activation_bytes),
            ("memory", self.memory),
            ("passes on", (*self.crossing_bytes, 0)),
        ]
        lines = []
        for each in self.shared:
            names = ", ".join(map(json.dumps, each.names))  # escapes unprintable characters
            kind = "parameter" if each.is_parameter else "buffer or constant"
            lines.append(f"stages {', '.join(map(str, each.stages))} share the {kind} {names}")
        return columns, lines

    def to_json(self) -> str:
        """Return the plan as JSON text, which is the same for equal plans."""
        return json.dumps(self.document(), indent=2) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the plan as JSON objects, with its digest."""
        return sealed(self._content())

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Parse the result of `to_json`.

        Args:
            text: the text, which is untrusted.

        Raises:
            StageError: the text is not a plan, or was changed.
        """
        fields = read(text, FORMAT, VERSION)
        plan = _plan_of(fields)
        fields.check_digest()
        fields.end()
        return plan

    def digest(self) -> str:
        """Return the SHA-256 of the plan: processes whose digests are equal have equal plans."""
        return digest_of(self._content())

    def _content(self) -> dict[str, Any]:
        lists = {
            name: list(getattr(self, name))
            for name in ("ends", "weights", "state_bytes", "activation_bytes", "crossing_bytes")
        }
        return {
            "format": FORMAT,
            "version": VERSION,
            "by": self.by,
            "graph_hash": self.graph_hash,
            "operations": self.operations,
            **lists,
            "shared": [
                {
                    "names": list(each.names),
                    "stages": list(each.stages),
                    "is_parameter": each.is_parameter,
                }
                for each in self.shared
            ],
        }


def check_complete(plan: Plan) -> None:
    """Raise StageError for a plan that `from_json` would refuse, because users can build plans."""
    try:
        content = plan._content()
    except (AttributeError, TypeError) as error:
        raise StageError(f"a field of the plan has the wrong type: {error}") from None
    _plan_of(Fields(FORMAT, content))


def _plan_of(fields: Fields) -> Plan:
    """Build a plan from its fields; StageError if it cannot be the plan of any program."""
    operations = fields.integer("operations")
    ends = fields.integers("ends")
    n = len(ends)
    _check_ends(ends, operations)
    shared = []
    for each in fields.parts("shared"):
        one = Shared(each.texts("names"), each.integers("stages"), each.truth("is_parameter"))
        each.require(len(one.names) > 0, "names", "at least one name")
        is_ascending = list(one.stages) == sorted({*one.stages})
        each.require(
            is_ascending and one.stages[-1:] < (n,), "stages", f"ascending numbers below {n}"
        )
        each.end()
        shared.append(one)
    by, graph_hash = fields.text("by"), fields.text("graph_hash")
    fields.require(by in get_args(By), "by", f"one of {get_args(By)}")
    is_hash = re.fullmatch("[0-9a-f]{64}", graph_hash) is not None
    fields.require(is_hash, "graph_hash", "64 hexadecimal digits")
    return Plan(
        by=by,
        graph_hash=graph_hash,
        operations=operations,
        ends=ends,
        weights=fields.integers("weights", n),
        state_bytes=fields.integers("state_bytes", n),
        activation_bytes=fields.integers("activation_bytes", n),
        crossing_bytes=fields.integers("crossing_bytes", n - 1),
        shared=tuple(shared),
    )


def _check_ends(ends: tuple[int, ...], operations: int) -> None:
    if not ends:
        raise StageError("the plan does not have stages")
    for stage, (start, end) in enumerate(pairwise((0, *ends))):
        if start >= end:
            raise StageError(f"stage {stage} of the plan does not have operations")
    if ends[-1] != operations:
        raise StageError(
            f"the last stage of the plan ends at operation {ends[-1]}, expected {operations}"
        )


def picture_of(program: ExportedProgram, stage_of: SplitCallback) -> str | None:
    """Draw the stages and the values between them as an SVG file; None without a renderer."""
    split = split_module(program.graph_module, None, stage_of, keep_original_order=True)
    try:
        return draw(
            split, format="svg", signature=program.graph_signature, state_dict=state_of(program)
        )
    except (ImportError, NoRendererError):
        return None
