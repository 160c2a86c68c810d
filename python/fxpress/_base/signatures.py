"""Expand type aliases in the signatures that `help()` shows."""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def expand_aliases(function: _F) -> _F:
    """Replace type aliases in the annotations of a function by their types; return the function."""
    scope = inspect.unwrap(function).__globals__
    for name, text in function.__annotations__.items():
        if isinstance(text, str):
            parts = [None if part == "None" else scope.get(part) for part in text.split(" | ")]
            found = [part for part in parts if _is_alias(part)]
            if found and len(found) + text.split(" | ").count("None") == len(parts):
                function.__annotations__[name] = functools.reduce(operator.or_, parts)
    return function


def _is_alias(value: Any) -> bool:
    return isinstance(value, types.UnionType) or typing.get_origin(value) is not None
