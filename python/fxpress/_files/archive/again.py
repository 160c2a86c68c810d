"""Read an archive and the weights beside it while another process may replace both."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fxpress._files.archive.files import is_path
from fxpress._files.errors import ArchiveError

P = ParamSpec("P")
R = TypeVar("R")

_TURNS = 20  # the most replacements in a row after which reading is tried again


def _identity(path: Any) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def again_when_replaced(read: Callable[P, R]) -> Callable[P, R]:
    """Make a function that reads an archive `f` read again when another archive replaces it.

    It reads again when it fails and the file at the path has changed meanwhile: the weights beside
    the older archive may be gone.
    """

    @functools.wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> R:
        f = args[0] if args else kwargs.get("f")
        for _ in range(_TURNS if is_path(f) else 0):
            before = _identity(f)
            try:
                return read(*args, **kwargs)
            except (FileNotFoundError, ArchiveError):
                if _identity(f) in (before, None):
                    raise
        return read(*args, **kwargs)

    return reading
