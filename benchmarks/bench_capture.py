"""Steps of capturing a callable as a graph, against torch's."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
import torch._dynamo.guards as torch_guards
from torch import nn

import graphs
from figures import Figure, Goal
from fxpress._capture.guard_function import build_guard_function
from timing import interleaved, per_node, ratio, stopwatch

_Function = Callable[[list[str], str], tuple[str, str]]

GUARDS = Goal(40, more_is_better=True)
LAYERS = 32
DEPTHS = (0, 20, 60)  # frames: torch's time depends on where in the stack it is


def measure(rounds: int) -> list[Figure]:
    """The source of the function that checks guards."""
    torch.manual_seed(0)
    layers = (graphs.Layer(graphs.WIDTH, graphs.HEADS) for _ in range(LAYERS))
    model = nn.Sequential(*layers).eval()
    inputs = (torch.randn(2, 8, graphs.WIDTH),)
    calls = _recorded(lambda: torch.export.export(model, inputs, strict=True))
    parts, arguments = max(calls, key=lambda call: len(call[0]))
    theirs = functools.partial(torch_guards.build_guard_function, parts, arguments)
    ours = functools.partial(build_guard_function, parts, arguments)
    assert ours() == theirs()
    seconds: dict[str, list[float]] = {"ours": [], "torch": []}
    for depth in DEPTHS:
        actions = {
            name: stopwatch(functools.partial(_below, depth, call))
            for name, call in (("ours", ours), ("torch", theirs))
        }
        for name, times in interleaved(actions, rounds).items():
            seconds[name] += times
    return [
        Figure(
            f"transformer, {LAYERS} layers: {len(parts):,} guards",
            "torch / function of the guards",
            "us/guard",
            per_node(seconds["ours"], len(parts)),
            per_node(seconds["torch"], len(parts)),
            ratio(seconds["torch"], seconds["ours"]),
            len(seconds["ours"]),
            GUARDS,
        )
    ]


def _below(depth: int, call: Callable[[], Any]) -> Any:
    return call() if depth == 0 else _below(depth - 1, call)


def _recorded(run: Callable[[], Any]) -> list[tuple[list[str], str]]:
    calls: list[tuple[list[str], str]] = []
    real: _Function = torch_guards.build_guard_function

    def record(code_parts: list[str], closure_args: str) -> tuple[str, str]:
        calls.append((list(code_parts), closure_args))
        return real(code_parts, closure_args)

    with mock.patch.object(torch_guards, "build_guard_function", record):
        run()
    return calls
