"""Reading of an archive and the weights beside it while somebody replaces both."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from fxpress._archive.errors import ArchiveError
from fxpress._archive.files import is_path

P = ParamSpec("P")
R = TypeVar("R")

_TURNS = 20  # more savers than these one after the other are not waited for


def _identity(path: Any) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def again_when_replaced(read: Callable[P, R]) -> Callable[P, R]:
    """For a function that reads an archive `f`: when it fails, and another archive has taken the
    place of the one at the path meanwhile, that one is read: the weights beside the older one may
    be gone."""

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
