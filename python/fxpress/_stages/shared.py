"""Find the state that several stages have."""

from __future__ import annotations

from collections.abc import Hashable

from fxpress._stages.lives import Lives
from fxpress._stages.planned import Shared


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
