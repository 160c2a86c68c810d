"""Weigh the operations of a program."""

from __future__ import annotations

from typing import Any, Literal, get_args

from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils.flop_counter import FlopCounterMode

from fxpress._stages.ends import state_of
from fxpress._stages.errors import StageError
from fxpress._stages.on_meta import Arguments
from fxpress._stages.timing import seconds_of
from fxpress._torch import fx as torch_fx
from fxpress.partition._balanced import state_weights
from fxpress.partition._callback import operations
from fxpress.partition._state import StateReader

By = Literal["parameters", "bytes", "flops", "time", "module"]
_NANOSECONDS = 1e9


def weights_of(program: ExportedProgram, by: By, inputs: Any) -> list[int]:
    """Return the weight of each operation of a program's own graph, in order.

    Args:
        program: the program.
        by: "parameters" or "bytes" of the state that the operation is the first to use, "flops" as
            `torch.utils.flop_counter` counts them for the sizes in the metadata, or "time" in
            nanoseconds. "module" weighs as "parameters".
        inputs: (args, kwargs) to measure times with; otherwise they are not looked at.

    Raises:
        StageError: all weights are zero, or there are no inputs to measure times with.
    """
    if by not in get_args(By):
        raise StageError(f"cannot weigh by {by!r}, only by {', '.join(get_args(By))}")
    if by == "time":
        if inputs is None:
            raise StageError("times are measured with example inputs, and the program has none")
        taken = seconds_of(program, inputs)
        return [int(taken[node] * _NANOSECONDS) + 1 for node in operations(program.graph_module)]
    if by == "flops":
        known: dict[Any, int] = {}
        weights = [_flops(node, known) for node in operations(program.graph_module)]
    else:
        size: Literal["parameters", "bytes"] = "bytes" if by == "bytes" else "parameters"
        reader = StateReader(program.graph_module, program.graph_signature, state_of(program))
        weights = state_weights(program.graph_module, reader, size)
    if not any(weights) and by != "module":
        raise StageError(f"the program has no {by} to share out; share out something else")
    return weights


def _flops(node: Node, known: dict[Any, int]) -> int:
    """Return what torch counts for an operator; bodies of operators count nothing."""
    if not isinstance(node.target, torch_fx.OpOverload):
        return 0
    arguments = Arguments(node)
    if arguments.key not in known:
        with FlopCounterMode(display=False) as counter:
            arguments.call()
        known[arguments.key] = int(counter.get_total_flops())
    return known[arguments.key]
