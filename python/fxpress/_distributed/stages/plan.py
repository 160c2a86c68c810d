"""Choose where to cut a program into stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Literal, get_args

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._base.signatures import expand_aliases
from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.analysis import Analysis, analyze
from fxpress._distributed.stages.costs import By, weights_of
from fxpress._distributed.stages.cut import shared_of
from fxpress._distributed.stages.division import Division
from fxpress._distributed.stages.lifetimes import lifetimes_of
from fxpress._distributed.stages.memory import Memory, limits_of
from fxpress._distributed.stages.places import places_of, spans_of, spans_of_parameters
from fxpress._distributed.stages.planned import Plan, check_complete
from fxpress._distributed.stages.profile import OperationTimes, measure_times
from fxpress._files.serde.hashing import graph_hash
from fxpress._graphs.partition.callback import operations

Sharing = Literal["list", "together"]


@expand_aliases
def plan(
    program: ExportedProgram,
    stages: int,
    by: By = "parameters",
    *,
    memory: int | Sequence[int] | None = None,
    inputs: Any = None,
    profile: OperationTimes | None = None,
    slack: float = 0.05,
    shared: Sharing = "list",
) -> Plan:
    """Return where to cut a program into stages. torch has no such function.

    The heaviest stage is at most `slack` heavier than the minimum. Among these plans, the function
    minimizes the bytes between stages (`Plan.crossing_bytes`). If several plans remain, each stage
    in turn is as close as possible to an equal share of the remaining weight.

    Equal programs get equal plans in every process. For "time", this requires equal profiles.

    Args:
        program: the program, which is not changed.
        stages: the number of stages, none of which is empty.
        by: the weight to balance. "parameters" and "bytes" count the state that an operation is the
            first to use. "flops" are the FLOPs that `torch.utils.flop_counter` counts for the sizes
            in the metadata. "time" uses `profile`. "module" balances parameters, but cuts only
            between modules. It uses the least depth of nested modules with which stages are almost
            as even as with cuts anywhere.
        memory: the maximum bytes of every stage, or a sequence with the maximum of each. A stage
            uses memory for its state, and for the values that are live at once when it runs without
            gradients.
        inputs: (args, kwargs) to measure times with if there is no profile.
        profile: the times to balance, from `measure_times`.
        slack: how much heavier the heaviest stage may be than the minimum, as a fraction of the
            minimum.
        shared: where to run operations that use one parameter. "list": in any stages; each stage
            has a copy, and `Plan.shared` lists the parameter. "together": in one stage.

    Raises:
        StageError: there are too few possible cuts, no plan fits into the memory limits, all
            weights are 0, the program passes effect tokens, the profile is for another program, or
            there are no inputs to measure times with.
        fxpress.SerializeError, fxpress.UnsupportedError: `graph_hash` does not support the program.

    Example:
        >>> from fxpress import pipeline
        >>> pipeline.plan(program, 2).weights
        (304, 304)
    """
    _check_options(stages, slack, shared)
    limits = limits_of(memory, stages)
    known = graph_hash(program)
    if by == "time":
        profile = _profile_for(program, known, profile, inputs)
    with _native.GcPause():  # otherwise the garbage collector visits every new object again
        analysis = analyze(program)
        _check_operations(analysis, stages)
        lifetimes = lifetimes_of(analysis)
        before = [0, *accumulate(weights_of(analysis, lifetimes, by, profile))]
        spans = list(spans_of(analysis))
        if shared == "together":
            spans += spans_of_parameters(lifetimes)
        places = places_of(len(analysis.operations), spans, stages)
        division = Division(analysis, lifetimes, before, stages, limits, slack)
        found = division.by_modules(places) if by == "module" else division.anywhere(places)
        held = Memory(lifetimes, [0, *found])
        return Plan(
            by=by,
            graph_hash=known,
            operations=len(analysis.operations),
            ends=tuple(found),
            weights=tuple(before[end] - before[start] for start, end in pairwise([0, *found])),
            state_bytes=tuple(held.state(stage, stage + 1) for stage in range(stages)),
            activation_bytes=tuple(held.activations(stage, stage + 1) for stage in range(stages)),
            crossing_bytes=tuple(lifetimes.crossing[end] for end in found[:-1]),
            shared=shared_of(lifetimes, found),
        )


def check(plan: Plan, program: ExportedProgram) -> None:
    """Refuse a plan for another program, or a damaged plan. torch has no such function.

    Args:
        plan: the plan.
        program: the program, which is not changed.

    Raises:
        StageError: the plan is for another program, cuts where a cut is not possible, or has a
            stage without operations or another invalid field.
        fxpress.SerializeError, fxpress.UnsupportedError: `graph_hash` does not support the program.

    Example:
        >>> from fxpress import pipeline
        >>> pipeline.check(pipeline.plan(program, 2), program)
    """
    check_complete(plan)
    if plan.graph_hash != graph_hash(program):
        raise StageError("the plan is for another program: the graph_hash differs")
    analysis = analyze(program)
    places = places_of(len(analysis.operations), spans_of(analysis), 1)
    if plan.operations != len(analysis.operations) or not {*plan.ends} <= {*places}:
        raise StageError("the plan is for another program: this one cannot be cut at `plan.ends`")


def _check_options(stages: int, slack: float, shared: str) -> None:
    if type(stages) is not int:
        raise StageError(
            f"expected `stages` to be a Plan (from plan) or an int, got a {type(stages).__name__}"
        )
    if stages < 1:
        raise StageError(f"cannot make {stages} stages: expected at least 1")
    if not (isinstance(slack, (int, float)) and 0 <= slack < math.inf):
        raise StageError(f"expected `slack` to be a fraction such as 0.05, got {slack!r}")
    if shared not in get_args(Sharing):
        choices = " or ".join(get_args(Sharing))
        raise StageError(f"expected `shared` to be {choices}, got {shared!r}")


def _check_operations(analysis: Analysis, stages: int) -> None:
    count = len(analysis.operations)
    if stages > count:
        raise StageError(f"cannot make {stages} stages: the program has {count} operations")
    kind = analysis.ends.unknown()
    if kind is not None:
        raise StageError(f"the program has a {kind}, which cannot pass between stages")


def _profile_for(
    program: ExportedProgram, graph_hash: str, profile: OperationTimes | None, inputs: Any
) -> OperationTimes:
    if profile is None:
        return measure_times(program, inputs)
    count = sum(1 for _ in operations(program.graph_module))
    if profile.graph_hash != graph_hash or len(profile.nanoseconds) != count:
        raise StageError("the profile is for another program: the graph_hash differs")
    return profile
