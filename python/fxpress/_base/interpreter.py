"""Define functions that depend on the version of CPython; no other module tests the version."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

# 256 KiB of stack slots. The frame is slightly larger, so CPython rounds its chunk up to 512 KiB. A
# traceback copies the frame object, but does not touch the memory of the unused slots.
_SLOTS = (1 << 18) // 8


def in_large_frame(function: _F) -> _F:
    """Return a copy of the function with frames of 256 KiB; before 3.11, the function itself."""
    if sys.version_info < (3, 11):
        return function
    code: CodeType = function.__code__.replace(co_stacksize=_SLOTS)
    return FunctionType(code, function.__globals__)


def annotations_of(cls: type) -> dict[str, Any]:
    """Return the annotations in the body of a class; undefined names do not raise an error."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return dict(annotationlib.get_annotations(cls, format=annotationlib.Format.FORWARDREF))
    return dict(cls.__annotations__)
