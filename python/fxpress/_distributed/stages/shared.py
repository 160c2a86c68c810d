"""Find the state that several stages have."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from itertools import pairwise

from torch.export import ExportedProgram

from fxpress._distributed.stages.cut import Cut
from fxpress._distributed.stages.ends import state_of, storage_of
from fxpress._distributed.stages.lives import Lives
from fxpress._distributed.stages.planned import Shared


def shared_of(lives: Lives, ends: list[int]) -> tuple[Shared, ...]:
    """Return the state that several stages use, in the order in which the program first does."""
    bounds = pairwise([0, *ends])
    stages = _in_several(
        (key, stage)
        for stage, (start, end) in enumerate(bounds)
        for keys in lives.uses[start:end]
        for key in keys
    )
    return tuple(
        Shared(tuple(lives.state[key].names), tuple(using), lives.state[key].is_parameter)
        for key, using in stages.items()
    )


def shared_of_cut(program: ExportedProgram, cut: Cut) -> list[tuple[list[str], list[int]]]:
    """Return the tensors of which several stages have a copy: their names, and the stages.

    Args:
        program: the program.
        cut: its stages, which may have more state than a plan knows: results that are state.
    """
    values = state_of(program)
    names: dict[Hashable, dict[str, None]] = {}
    uses: list[tuple[Hashable, int]] = []
    for stage in cut.stages:
        for node in stage.state:
            name = str(cut.ends.state[node].target)
            key = storage_of(values[name])
            names.setdefault(key, {})[name] = None
            uses.append((key, stage.number))
    return [(list(names[key]), list(using)) for key, using in _in_several(uses).items()]


def _in_several(uses: Iterable[tuple[Hashable, int]]) -> dict[Hashable, dict[int, None]]:
    """Return the stages of each storage that several use, in the order of first use."""
    stages: dict[Hashable, dict[int, None]] = {}
    for key, stage in uses:
        stages.setdefault(key, {})[stage] = None
    return {key: using for key, using in stages.items() if len(using) > 1}
