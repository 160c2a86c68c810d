"""Set whether equal calls of modules are repeated, traced, or traced and compared."""

from __future__ import annotations

import contextvars
import functools
import os
from typing import Literal

from fxpress import _native

Mode = Literal["instantiate", "check", "trace"]

_from_environment: Mode = "check" if os.environ.get("FXPRESS_CHECK_REUSE") == "1" else "instantiate"
_mode: contextvars.ContextVar[Mode] = contextvars.ContextVar("reuse", default=_from_environment)


def mode() -> Mode:
    """Return how this thread or task handles calls that equal earlier calls."""
    return _mode.get()


def _block(value: Mode) -> _native.Block:
    return _native.Block(functools.partial(_mode.set, value), _mode.reset)


def check_reuse(enabled: bool = True) -> _native.Block:
    """Return a context manager in which repeatable calls are traced, to check what repeating adds.

    The environment variable `FXPRESS_CHECK_REUSE=1` has the same effect on the entire process.
    torch has no such function.

    Args:
        enabled: if False, calls in the block are repeated without a check.

    Returns:
        A context manager for one thread or task. A capture in its block raises `InternalError` if
        a call's trace adds other things to the graph than repeating an earlier call would add.

    Example:
        >>> from fxpress.functional_export import check_reuse
        >>> with fxpress.installed(), check_reuse():
        ...     exported = torch.export.export(model, (x,), strict=True)
    """
    return _block("check" if enabled else "instantiate")


def reuse_layers(enabled: bool = True) -> _native.Block:
    """Return a context manager in which calls of identical layers are traced once, or each time.

    torch has no such function.

    Args:
        enabled: if False, every call is traced in the block.

    Returns:
        A context manager for one thread or task.

    Example:
        >>> from fxpress.functional_export import reuse_layers, reuse_report
        >>> with fxpress.installed(), reuse_layers(False):
        ...     exported = torch.export.export(model, (x,), strict=True)
        >>> reuse_report().instantiated
        []
    """
    return _block("instantiate" if enabled else "trace")
