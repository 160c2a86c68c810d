"""Expressions of guards, as Dynamo makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch._dynamo.guards as torch_guards


def recorded(run: Callable[[], Any]) -> list[tuple[list[str], str]]:
    """The arguments of all calls of `build_guard_function` while something runs."""
    calls: list[tuple[list[str], str]] = []
    real = torch_guards.build_guard_function

    def record(code_parts: list[str], closure_args: str) -> tuple[str, str]:
        calls.append((list(code_parts), closure_args))
        return real(code_parts, closure_args)

    torch._dynamo.reset()
    with mock.patch.object(torch_guards, "build_guard_function", record):
        run()
    return calls
