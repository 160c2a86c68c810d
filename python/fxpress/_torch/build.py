"""Report the versions and settings with which the installed fxpress was built."""

from __future__ import annotations

from typing import Any

import torch

from fxpress import _native
from fxpress._torch import versions


def build_info() -> dict[str, Any]:
    """Return versions and build settings of fxpress's two extension modules.

    torch has no such function.

    Returns:
        ``{"torch": <running version>, "native": {...}, "aten": {...}}``. The dict of each extension
        has `version`, `compiler`, `cplusplus`, `build_type` and `pybind11`. The dict `aten` also
        has `torch` (the version that it was compiled against), `usable` (whether it runs with this
        torch) and `reason` (why it does not run, or None).

    Example:
        >>> sorted(fxpress.build_info())
        ['aten', 'native', 'torch']
    """
    return {"torch": torch.__version__, "native": _native.build_info(), "aten": _aten_info()}


def _aten_info() -> dict[str, Any]:
    try:
        from fxpress._torch import aten
    except ImportError as error:
        return {"torch": versions.built_for(), "usable": False, "reason": str(error)}
    return {**aten.build_info(), "usable": True, "reason": None}
