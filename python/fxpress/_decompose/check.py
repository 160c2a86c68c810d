"""Whether stamped programs are compared with what torch's trace of the whole gives."""

from __future__ import annotations

import contextvars
import functools
import os

from fxpress import _native

_checks: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "templates", default=os.environ.get("FXPRESS_CHECK_TEMPLATES") == "1"
)


def checks() -> bool:
    """Return whether to compare."""
    return _checks.get()


def check_templates(enabled: bool = True) -> _native.Block:
    """Return a block in which each program that is stamped is traced as a whole too, and compared.

    The environment variable `FXPRESS_CHECK_TEMPLATES=1` does it for the whole process. torch has
    no such function.

    Args:
        enabled: False for a block in which programs are not compared.

    Returns:
        A `with` block, of one thread or task. A decomposition in it raises `InternalError`, with
        the first difference, where a stamp would be wrong.

    Example:
        >>> from fxpress import decompose
        >>> with decompose.check_templates():
        ...     decomposed = decompose.run_decompositions(program)
    """
    return _native.Block(functools.partial(_checks.set, enabled), _checks.reset)
