"""Compute the weights of a program's operations. Stages are cut to have about equal weights."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, get_args

from torch.fx import Node
from torch.utils.flop_counter import FlopCounterMode

from fxpress._distributed.errors import StageError
from fxpress._distributed.stages.analysis import Analysis
from fxpress._distributed.stages.lifetimes import Lifetimes
from fxpress._distributed.stages.on_meta import Arguments, call_key
from fxpress._distributed.stages.profile import OperationTimes
from fxpress._graphs.partition.state import byte_count, element_count
from fxpress._torch import fx as torch_fx

By = Literal["parameters", "bytes", "flops", "time", "module"]


def weights_of(
    analysis: Analysis, lifetimes: Lifetimes, by: By, profile: OperationTimes | None = None
) -> list[int]:
    """Return the weight of each operation in order, in the unit of `by` ("time": nanoseconds)."""
    if by not in get_args(By):
        raise StageError(f"expected `by` to be one of {', '.join(get_args(By))}, got {by!r}")
    if by == "time":
        assert profile is not None, "plan measures a profile, or gets one"
        return list(profile.nanoseconds)
    if by == "flops":
        known: dict[Hashable, int] = {}
        weights = [_flops(node, known) for node in analysis.operations]
    else:
        size = byte_count if by == "bytes" else element_count
        weights = [sum(size(each) or 0 for each in brought) for brought in lifetimes.brought]
    if not any(weights) and by != "module":
        raise StageError(f"by={by!r}: all operations have the weight 0; pass another `by`")
    return weights


def _flops(node: Node, known: dict[Hashable, int]) -> int:
    """Return the FLOPs that torch counts for an operator; 0 for a higher-order operator."""
    if not isinstance(node.target, torch_fx.OpOverload):
        return 0
    key = call_key(node)
    if key not in known:
        with FlopCounterMode(display=False) as counter:
            Arguments(node).call()
        known[key] = int(counter.get_total_flops())
    return known[key]
