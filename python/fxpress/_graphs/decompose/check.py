"""Whether programs with stamped calls are compared with what a trace of the whole gives."""

from __future__ import annotations

import contextvars
import functools
import os

from torch.export import ExportedProgram

from fxpress import _native
from fxpress._torch import decompose as compat
from fxpress._torch import decompose_whole

_checks: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "templates", default=os.environ.get("FXPRESS_CHECK_TEMPLATES") == "1"
)


def checks() -> bool:
    """Return whether to compare."""
    return _checks.get()


class FakeResults:
    """What torch has cached of fake tensors when a decomposition begins.

    The tensors of a second one, in the same process, are not those of the first unless both begin
    with the same.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._mode = decompose_whole.fake_mode_of(program.graph_module)
        self._cached = compat.cached_results(self._mode)

    def restore(self) -> None:
        """Begin anew."""
        compat.restore_cached_results(self._mode, self._cached)


def check_templates(enabled: bool = True) -> _native.Block:
    """Return a block in which programs with stamped calls are traced as a whole too, and compared.

    That trace stamps nothing, and nothing in it is replaced for speed. Programs without a stamped
    call are not compared, joint graphs for one. The environment variable
    `FXPRESS_CHECK_TEMPLATES=1` does it for the whole process. torch has no such function.

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
