"""Choose where to cut a program into stages."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._serde.hashing import graph_hash
from fxpress._stages.costs import By, weights_of
from fxpress._stages.ends import Ends
from fxpress._stages.errors import StageError
from fxpress._stages.lives import lives_of
from fxpress._stages.measures import shared_of, state_bytes
from fxpress._stages.planned import Plan
from fxpress._stages.spans import spans_of
from fxpress._stages.writes import Storage, storages_of
from fxpress.partition import by_module
from fxpress.partition._balanced import linear_partition
from fxpress.partition._callback import operations

_EVEN = 1.25  # times the weight of the heaviest stage that cuts anywhere: even enough
_MOST_COMPONENTS = 100  # of a module's path


def plan(
    program: ExportedProgram, stages: int, by: By = "parameters", *, inputs: Any = None
) -> Plan:
    """Return where to cut a program into stages of equal weight. torch has no such function.

    Args:
        program: the program, which is not changed.
        stages: how many, none of them empty.
        by: what they share out, see `weights_of`. By "module", a stage begins where a module does:
            modules of the least depth that allows stages almost as even as cuts anywhere do.
        inputs: (args, kwargs) to measure times with.

    Raises:
        StageError: there are fewer places to cut at than it takes, nothing has any weight, the
            program passes effect tokens, or there are no inputs to measure times with.
    """
    nodes = list(operations(program.graph_module))
    n = stages
    if n < 1:
        raise StageError(f"cannot make {n} stages")
    if n > len(nodes):
        raise StageError(f"cannot make {n} stages of {len(nodes)} operations, none of them empty")
    unknown = Ends(program).unknown()
    if unknown is not None:
        raise StageError(f"the program has a {unknown}, which no stage can take or give")
    before = [0, *accumulate(weights_of(program, by, inputs))]
    storages = storages_of(program.graph)
    with _native.GcPause():
        ends = _ends(program, nodes, storages, n)
        found = _runs(before, ends, n)
        if by == "module":
            found = _runs_of_modules(program, nodes, before, ends, n, found)
        runs = list(zip([0, *found], found, strict=False))
        lives = lives_of(program, nodes, storages)
    return Plan(
        by=by,
        graph_hash=graph_hash(program),
        operations=len(nodes),
        ends=tuple(found),
        weights=tuple(before[end] - before[start] for start, end in runs),
        state_bytes=tuple(state_bytes(lives, start, end) for start, end in runs),
        activation_bytes=tuple(
            max(lives.alive[start:end]) + sum(lives.written[start:end]) for start, end in runs
        ),
        crossing_bytes=tuple(lives.crossing[end] for end in found[:-1]),
        shared=shared_of(lives, found),
    )


def check(plan: Plan, program: ExportedProgram) -> None:
    """Refuse a plan for another program. torch has no such function.

    Args:
        plan: the plan.
        program: the program, which is not changed.

    Raises:
        StageError: the plan is for another program, or cuts where no cut may be.
    """
    if plan.graph_hash != graph_hash(program):
        raise StageError("the plan is for another program: their graph_hash differs")
    nodes = list(operations(program.graph_module))
    if plan.operations != len(nodes) or not set(plan.ends) <= set(
        _ends(program, nodes, storages_of(program.graph), 1)
    ):
        raise StageError("the plan is for another program: it cuts where this one cannot be cut")


def _ends(
    program: ExportedProgram, nodes: list[Any], storages: dict[Any, Storage], n: int
) -> list[int]:
    """Return where a cut may be: the numbers of the operations behind it; the last is the end."""
    spans = list(spans_of(program, nodes, storages))
    changes = [0] * (len(nodes) + 1)  # of the number of spans around a place, from one to the next
    for span in spans:
        changes[span.first + 1] += 1
        changes[span.last + 1] -= 1
    around = list(accumulate(changes))
    ends = [end for end in range(1, len(nodes) + 1) if end == len(nodes) or not around[end]]
    if len(ends) < n:
        longest = sorted(spans, key=lambda span: span.first - span.last)[:3]
        why = ", ".join(span.reason for span in longest)
        raise StageError(
            f"cannot make {n} stages: there are {len(ends) - 1} places to cut at"
            + (f", and none where {why}" if why else "")
        )
    return ends


def _runs(before: list[int], ends: list[int], n: int) -> list[int]:
    """Return the end of each stage, of least maximum weight; `before` is the weight before each."""
    shares = [before[end] - before[start] for start, end in zip([0, *ends], ends, strict=False)]
    return [ends[last - 1] for last in linear_partition(shares, n)]


def _heaviest(before: list[int], runs: list[int]) -> int:
    return max(before[end] - before[start] for start, end in zip([0, *runs], runs, strict=False))


def _runs_of_modules(
    program: ExportedProgram,
    nodes: list[Any],
    before: list[int],
    ends: list[int],
    n: int,
    free: list[int],
) -> list[int]:
    """Return the end of each stage where one module ends and another begins.

    The modules are those of the least depth at which no stage is much heavier than the heaviest of
    `free`, which is cut between any operations; without such a depth, that of the least maximum.
    """
    best: list[int] | None = None
    most = 0
    for depth in range(1, _deepest(nodes) + 1):
        found = by_module(program.graph_module, depth=depth)
        allowed = [
            end for end in ends if end == len(nodes) or found[nodes[end]] != found[nodes[end - 1]]
        ]
        most = max(most, len(allowed))
        if len(allowed) < n:
            continue
        runs = _runs(before, allowed, n)
        if best is None or _heaviest(before, runs) < _heaviest(before, best):
            best = runs
        if _heaviest(before, best) <= _EVEN * _heaviest(before, free):
            break
    if best is None:
        raise StageError(
            f"cannot make {n} stages: there are {most - 1} places to cut at between modules"
        )
    return best


def _deepest(nodes: list[Any]) -> int:
    """Return the most components of a module's path, at least 1 and at most `_MOST_COMPONENTS`."""
    paths = (
        path for node in nodes for path, _ in (node.meta.get("nn_module_stack") or {}).values()
    )
    most = max((path.count(".") + path.count("[") for path in paths), default=0) + 1
    return min(most, _MOST_COMPONENTS)
