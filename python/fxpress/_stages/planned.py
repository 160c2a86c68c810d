"""A division of a program into stages, and the text that it is kept as."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from itertools import islice
from typing import Any

from torch.export import ExportedProgram

from fxpress._stages.documents import Fields, read
from fxpress._stages.errors import StageError
from fxpress.partition import SplitCallback
from fxpress.partition._callback import operations

FORMAT, VERSION = "fxpress plan", 1


@dataclasses.dataclass(frozen=True)
class Shared:
    """State of which several stages have a copy.

    Attributes:
        names: the names of one storage, in the order in which the program first uses them.
        stages: the stages that use it.
        is_parameter: whether one of the names is a parameter, whose gradients have to be added up.
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]
    is_parameter: bool


@dataclasses.dataclass(frozen=True)
class Plan:
    """Where a program is cut into stages. torch has no such class.

    A stage has the operations of the program's own graph from the end of the stage before to its
    own. Equal programs get equal plans in every process.

    Attributes:
        by: what the stages share out.
        graph_hash: `fxpress.graph_hash` of the program.
        operations: the number of its operations.
        ends: for each stage, the index of the first operation behind it; the last one is
            `operations`.
        weights: for each stage, what it has of `by`; nanoseconds by "time", elements of parameters
            by "module".
        state_bytes: for each stage, the bytes of the parameters, buffers and constants that it
            uses; those of one storage count once.
        activation_bytes: for each stage, the most bytes of other values that are alive at once
            when it runs without gradients, with those that only pass through it.
        crossing_bytes: for each cut, the bytes of the values that pass it: results of operations
            that a later stage takes, inputs of the program that a stage behind it takes, which
            come from the first stage, and results of the program on their way to the last stage.
        shared: the state that several stages use.
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
    def starts(self) -> tuple[int, ...]:
        """For each stage, the index of its first operation."""
        return (0, *self.ends[:-1])

    @property
    def memory(self) -> tuple[int, ...]:
        """For each stage, the bytes of its state and of its activations."""
        return tuple(map(sum, zip(self.state_bytes, self.activation_bytes, strict=True)))

    def stage_of(self, program: ExportedProgram) -> SplitCallback:
        """Return the stage of each operation, as `split_module` takes it.

        Args:
            program: the program that the plan is for, see `check`.
        """
        nodes = operations(program.graph_module)
        stages = {
            node: stage
            for stage, (start, end) in enumerate(zip(self.starts, self.ends, strict=True))
            for node in islice(nodes, end - start)
        }
        return SplitCallback(stages, f"plan(stages={self.stages}, by={self.by!r})")

    def to_json(self) -> str:
        """Return the plan as a text, which is the same for equal plans."""
        return json.dumps(self.document(), indent=2) + "\n"

    def document(self) -> dict[str, Any]:
        """Return the plan as objects that JSON can hold, with its digest."""
        return {**self._content(), "digest": self.digest()}

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Return the plan that `to_json` gave a text of.

        Args:
            text: the text, which may come from anywhere.

        Raises:
            StageError: the text is no plan, or is not as it was written.
        """
        fields = read(text, FORMAT, VERSION)
        plan = _plan_of(fields)
        if fields.text("digest") != plan.digest():
            raise StageError(f"this {FORMAT} is damaged: its digest is that of another one")
        fields.end()
        return plan

    def digest(self) -> str:
        """Return the SHA-256 of the plan: processes whose digests are equal have equal plans."""
        text = json.dumps(self._content(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

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


def _plan_of(fields: Fields) -> Plan:
    operations = fields.integer("operations")
    ends = fields.integers("ends")
    n = len(ends)
    fields.require(n >= 1 and ends[-1] == operations, "ends")
    fields.require(all(a < b for a, b in zip((0, *ends), ends, strict=False)), "ends")
    shared = []
    for each in fields.parts("shared"):
        one = Shared(each.texts("names"), each.integers("stages"), each.truth("is_parameter"))
        each.require(len(one.names) > 0, "names")
        each.require(list(one.stages) == sorted({*one.stages} & {*range(n)}), "stages")
        each.end()
        shared.append(one)
    return Plan(
        by=fields.text("by"),
        graph_hash=fields.text("graph_hash"),
        operations=operations,
        ends=ends,
        weights=fields.integers("weights", n),
        state_bytes=fields.integers("state_bytes", n),
        activation_bytes=fields.integers("activation_bytes", n),
        crossing_bytes=fields.integers("crossing_bytes", n - 1),
        shared=tuple(shared),
    )
