"""Define access to the flag `RUN_WITH_INTERPRETER`: whether new modules run on the engine."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace

from fxpress import _native
from fxpress._base.replacement import attribute_block

_NAME = "RUN_WITH_INTERPRETER"
# The object with the flag. `fxpress.unflatten` makes itself the holder when it is imported, because
# callers set the flag on `fxpress.unflatten`.
holder: ModuleType | SimpleNamespace = SimpleNamespace(**{_NAME: True})


def runs_with_interpreter() -> bool:
    """Return whether new modules run on the engine."""
    return bool(getattr(holder, _NAME))


def _disable_interpreter() -> _native.Block:
    """Return a context manager. Modules created in its block run generated code, not the engine.

    Stands in for `torch.export.unflatten._disable_interpreter`.
    """
    return attribute_block(holder, _NAME, False)
