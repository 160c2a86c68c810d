"""Find the state that several stages have."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from torch.export import ExportedProgram

from fxpress._stages.cut import Cut
from fxpress._stages.ends import state_of
from fxpress._stages.lives import Lives
from fxpress._stages.planned import Shared
from fxpress._stages.sizes import storage_of


def shared_of(lives: Lives, ends: list[int]) -> tuple[Shared, ...]:
    """Return the state that several stages use, in the order in which the program first does.

    Args:
        lives: of the program.
        ends: the end of each stage.
    """
    stages: dict[Hashable, dict[int, None]] = {}
    start = 0
    for stage, end in enumerate(ends):
        for keys in lives.uses[start:end]:
            for key in keys:
                stages.setdefault(key, {})[stage] = None
        start = end
    return tuple(
        Shared(tuple(lives.state[key].names), tuple(using), lives.state[key].is_parameter)
        for key, using in stages.items()
        if len(using) > 1
    )


def shared_of_cut(program: ExportedProgram, cut: Cut) -> list[tuple[list[str], list[int]]]:
    """Return the tensors of which several stages have a copy: their names, and the stages.

    Args:
        program: the program.
        cut: its stages.
    """
    values = state_of(program)
    found: dict[Any, tuple[dict[str, None], dict[int, None]]] = {}  # by storage
    for stage in cut.stages:
        for node in stage.state:
            name = str(cut.ends.state[node].target)
            names, stages = found.setdefault(storage_of(values[name]), ({}, {}))
            names[name] = None
            stages[stage.number] = None
    return [(list(names), list(stages)) for names, stages in found.values() if len(stages) > 1]
