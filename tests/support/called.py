"""Pickles that call a function of the test."""

from __future__ import annotations

from typing import Any


class Called:
    """A pickle of it calls a function, and gives a state to the result unless that is None."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced
