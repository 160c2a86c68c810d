"""Pickles that call a function of the test."""

from __future__ import annotations

from typing import Any


class Called:
    """Its pickle calls a function, and sets the state of the result, unless the state is None."""

    def __init__(self, function: Any, *arguments: Any, state: Any = None) -> None:
        self.reduced = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.reduced
