"""`get_verbose_code_part`: the same text as torch's, character for character."""

from __future__ import annotations

import os
import traceback
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo.guards as torch_guards

import fxpress
from fxpress._graphs.capture.guard_function import get_verbose_code_part

TORCH = os.path.dirname(torch.__file__)
FRAMES = [
    traceback.FrameSummary("/home/x/model.py", 3, "forward", line="y = x + 1"),
    traceback.FrameSummary("/home/x/model.py", 4, "forward", line=""),
    traceback.FrameSummary("model.py", 4, "forward", line="relative"),
    traceback.FrameSummary(f"{TORCH}/nn/modules/linear.py", 1, "forward", lookup_line=False),
    traceback.FrameSummary(f"{TORCH}/_dynamo/external_utils.py", 1, "skipped", line="x"),
    traceback.FrameSummary("<eval_with_key>.7", 9, "forward", line="z" * 2000),
    traceback.FrameSummary("", 0, "", line=None, lookup_line=False),
    traceback.FrameSummary("/tmp/\u00e9\ud800", 1, "f", line="\u00e9"),
]


def guard(user: list[int] | None, stack: list[int] | None = None) -> Any:
    frames = None if stack is None else [FRAMES[i] for i in stack]
    return SimpleNamespace(
        user_stack=None if user is None else [FRAMES[i] for i in user],
        stack=None if frames is None else SimpleNamespace(summary=lambda: frames),
    )


@pytest.mark.parametrize("text", ["", "L['x']", "x" * 59, "x" * 60, "x" * 61])
@pytest.mark.parametrize(
    "guard",
    [
        None,
        guard(None),
        guard([]),
        *(guard([i]) for i in range(len(FRAMES))),
        guard([0, 4]),
        guard([4, 4]),
        guard([4], [0]),
        guard(None, []),
        guard(None, [0, 1]),
        guard(None, [5]),
    ],
)
def test_all_kinds_of_origins(text: str, guard: Any) -> None:
    expected = torch_guards.get_verbose_code_part(text, guard)
    assert get_verbose_code_part(text, guard) == expected


def test_guards_of_a_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU())
    calls = 0
    torchs = torch_guards.get_verbose_code_part

    def both(code_part: str, guard: Any) -> str:
        nonlocal calls
        calls += 1
        expected = torchs(code_part, guard)
        assert get_verbose_code_part(code_part, guard) == expected
        return expected

    torch._dynamo.reset()
    with mock.patch.object(torch_guards, "get_verbose_code_part", both):
        torch.compile(model, backend="eager", fullgraph=True)(torch.ones(2, 3))
    assert calls > 10


def test_it_is_installed() -> None:
    torchs = torch_guards.get_verbose_code_part
    with fxpress.installed():
        assert torch_guards.get_verbose_code_part is not torchs
    assert torch_guards.get_verbose_code_part is torchs
