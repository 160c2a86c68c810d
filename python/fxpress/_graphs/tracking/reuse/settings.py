"""Whether equal calls of modules are repeated, checked or traced."""

from __future__ import annotations

import contextlib
import contextvars
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Literal

Mode = Literal["instantiate", "check", "trace"]

_from_environment: Mode = "check" if os.environ.get("FXPRESS_CHECK_REUSE") == "1" else "instantiate"
_mode: contextvars.ContextVar[Mode] = contextvars.ContextVar("reuse", default=_from_environment)


def mode() -> Mode:
    """Return how calls that equal earlier ones are handled."""
    return _mode.get()


@contextlib.contextmanager
def _use(value: Mode) -> Iterator[None]:
    token = _mode.set(value)
    try:
        yield
    finally:
        _mode.reset(token)


def check_reuse(enabled: bool = True) -> AbstractContextManager[None]:
    """Return a context manager in which every call is traced and compared with a repeated call.

    The environment variable `FXPRESS_CHECK_REUSE=1` has the same effect on the entire process.
    torch has no such function.

    Args:
        enabled: False: repeat calls without a check.

    Returns:
        A context manager for one thread or task. A capture in it raises `InternalError` if a
        repeated call would be wrong.

    Example:
        >>> from fxpress.functional_export import check_reuse
        >>> with fxpress.installed(), check_reuse():
        ...     exported = torch.export.export(model, (x,), strict=True)
    """
    return _use("check" if enabled else "instantiate")


def reuse_layers(enabled: bool = True) -> AbstractContextManager[None]:
    """Return a context manager in which calls of identical layers are traced once, or each time.

    torch has no such function.

    Args:
        enabled: False: trace every call.

    Returns:
        A context manager for one thread or task.

    Example:
        >>> from fxpress.functional_export import reuse_layers, reuse_report
        >>> with fxpress.installed(), reuse_layers(False):
        ...     exported = torch.export.export(model, (x,), strict=True)
        >>> reuse_report().instantiated
        []
    """
    return _use("instantiate" if enabled else "trace")
