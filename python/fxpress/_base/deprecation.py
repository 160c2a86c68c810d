"""Keep the old names of renamed public attributes."""

from __future__ import annotations

import warnings
from typing import Any


def renamed(old: str, new: str) -> property:
    """Return the property `old`, which warns and returns the attribute `new`."""

    def get(owner: object) -> Any:
        text = f"{type(owner).__name__}.{old} is deprecated: use {new}"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return getattr(owner, new)

    return property(get, doc=f"Deprecated name of `{new}`.")
