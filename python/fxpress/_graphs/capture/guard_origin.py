"""Format a guard with the line of the program that it comes from."""

from __future__ import annotations

import functools
from typing import Any

from fxpress._torch.capture import format_frame, shorten_filename, uninteresting_files

_LONGEST = 1024  # characters; longer lines lose the program's text, which may be generated
_WIDTH = 60  # characters of a guard


@functools.lru_cache(maxsize=1024)
def _short(filename: str) -> str:
    """Return a short file name. It is cached, because many guards come from few files."""
    return str(shorten_filename(filename))


def _origin(guard: Any) -> str:
    if guard.user_stack:
        skipped = uninteresting_files()
        for frame in reversed(guard.user_stack):
            if frame.filename not in skipped:
                place = f"{_short(frame.filename)}:{frame.lineno} in {frame.name}"
                text = f"  # {frame.line}  # {place}"
                return text if len(text) <= _LONGEST else f"  # {place}"
        return ""
    if guard.stack:
        frames = guard.stack.summary()
        return f"  # {format_frame(frames[-1])}" if frames else "  # <unknown>"
    return ""


def get_verbose_code_part(code_part: str, guard: Any) -> str:
    """Return the text of a guard, followed by the place in the program that made it.

    Stands in for `torch._dynamo.guards.get_verbose_code_part`.
    """
    return f"{code_part:<{_WIDTH}}{'' if guard is None else _origin(guard)}"
