"""Detect that a text in a file becomes code: payloads import a module that does not exist."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Iterator
from typing import Any

MODULE = "fxpress_payload"  # what a payload imports
_OUTSIDE = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "ctypes.dlopen")
_heard: list[str] | None = None  # the effects of payloads in the open block of `listening`
_is_installed = False


def _is_in(code: types.CodeType) -> bool:
    """Return whether some code contains a payload as instructions, not only as a constant."""
    if MODULE in code.co_consts and "__import__" in code.co_names:
        return True
    return any(isinstance(each, types.CodeType) and _is_in(each) for each in code.co_consts)


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if _heard is None:
        return
    if event == "import" and str(arguments[0]).partition(".")[0] == MODULE:
        _heard.append(f"imported {arguments[0]}")
    elif event == "exec" and isinstance(arguments[0], types.CodeType) and _is_in(arguments[0]):
        _heard.append(f"became code in {arguments[0].co_filename}")
    elif event == "pickle.find_class" and str(arguments[0]).startswith(MODULE):
        _heard.append(f"unpickled {arguments[0]}.{arguments[1]}")
    elif event in _OUTSIDE and MODULE in repr(arguments):
        _heard.append(f"{event} {arguments}")


@contextlib.contextmanager
def listening() -> Iterator[list[str]]:
    """A block that lists the effects of payloads; only one block may be open."""
    global _heard, _is_installed
    if not _is_installed:
        sys.addaudithook(_hook)  # Python cannot remove a hook
        _is_installed = True
    _heard = heard = []
    try:
        yield heard
    finally:
        _heard = None
