"""Choose the stage of each operation of a program."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch.export import ExportedProgram

from fxpress._stages.costs import By, weights_of
from fxpress._stages.ends import Ends
from fxpress._stages.errors import StageError
from fxpress._stages.spans import spans_of
from fxpress.partition import SplitCallback, by_module
from fxpress.partition._balanced import linear_partition
from fxpress.partition._callback import operations


def plan(program: ExportedProgram, n: int, by: By, inputs: Any = None) -> SplitCallback:
    """Return the stage of each operation of a program's own graph: runs of least maximum weight.

    Args:
        program: the program.
        n: the number of stages.
        by: what to share out, see `weights_of`. By "module", a stage begins where a module does:
            modules of the least depth at which there are as many of them as stages.
        inputs: (args, kwargs) to measure times with.

    Raises:
        StageError: there are fewer places to cut at than it takes, nothing has any weight, the
            program passes effect tokens, or there are no inputs to measure times with.
    """
    nodes = list(operations(program.graph_module))
    if n < 1:
        raise StageError(f"cannot make {n} stages")
    if n > len(nodes):
        raise StageError(f"cannot make {n} stages of {len(nodes)} operations, none of them empty")
    unknown = Ends(program).unknown()
    if unknown is not None:
        raise StageError(f"the program has a {unknown}, which no stage can take or give")
    weights = weights_of(program, by, inputs)
    ends = _ends(program, nodes, n, by)
    before = [0, *accumulate(weights)]
    shares = [before[end] - before[start] for start, end in zip([0, *ends], ends, strict=False)]
    stages: dict[Any, int] = {}
    start = 0
    for stage, last in enumerate(linear_partition(shares, n)):
        stages.update(dict.fromkeys(nodes[start : ends[last - 1]], stage))
        start = ends[last - 1]
    return SplitCallback(stages, f"plan(n={n}, by={by!r})")


def _ends(program: ExportedProgram, nodes: list[Any], n: int, by: By) -> list[int]:
    """Return where a cut may be: the numbers of the operations behind it; the last is the end."""
    allowed = _module_ends(program, nodes, n) if by == "module" else range(1, len(nodes) + 1)
    spans = list(spans_of(program, nodes))
    changes = [0] * (len(nodes) + 1)  # of the number of spans around a place, from one to the next
    for span in spans:
        changes[span.first + 1] += 1
        changes[span.last + 1] -= 1
    around = list(accumulate(changes))
    ends = [end for end in allowed if end == len(nodes) or not around[end]]
    if len(ends) < n:
        longest = sorted(spans, key=lambda span: span.first - span.last)[:3]
        why = ", ".join(span.reason for span in longest)
        raise StageError(
            f"cannot make {n} stages: there are {len(ends) - 1} places to cut at"
            + (f", and none where {why}" if why else "")
        )
    return ends


def _module_ends(program: ExportedProgram, nodes: list[Any], n: int) -> list[int]:
    most: list[int] = []
    for depth in range(1, 100):
        found = by_module(program.graph_module, depth=depth)
        ends = [
            number
            for number in range(1, len(nodes))
            if found[nodes[number]] != found[nodes[number - 1]]
        ]
        if len(ends) + 1 >= n or (most and ends == most):
            return [*ends, len(nodes)]
        most = ends
    return [*most, len(nodes)]
