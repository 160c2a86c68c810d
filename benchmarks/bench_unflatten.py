"""Compare unflatten with torch's and with the floor; measure larger programs, copies of state."""

from __future__ import annotations

import importlib
from typing import Any

import torch

import programs
from figures import OVER_CREATION, Figure, Goal, growth
from floor import plain_creation_times
from fxpress import _native
from fxpress._torch import aten
from fxpress.unflatten import unflatten
from programs import Program
from timing import Action, interleaved, per_node, ratio, stopwatch

_torch: Any = importlib.import_module("torch.export.unflatten")

OVER_TORCH = Goal(25, more_is_better=True)
OVER_TORCH_EXPERTS = Goal(30, more_is_better=True)
OVER_FLOOR = Goal(1.8)
STATE_BYTES = 2**28


def measure_unflatten(program: Program, rounds: int, goal: Goal) -> list[Figure]:
    """Measure the call, against torch's and against creating its result from known parts."""
    ours = unflatten(program.program)
    assert_same_tree(ours, _torch.unflatten(program.program), program.inputs)
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: unflatten(program.program)),
            "torch": stopwatch(lambda: _torch.unflatten(program.program)),
            "floor": floor(ours, program),
        },
        rounds,
    )
    nodes = program.nodes
    mine = per_node(seconds["ours"], nodes)
    return [
        Figure(
            program.name,
            "`unflatten`",
            "us/node",
            mine,
            per_node(seconds["torch"], nodes),
            ratio(seconds["torch"], seconds["ours"]),
            rounds,
            goal,
            "unflatten",
        ),
        Figure(
            program.name,
            "`unflatten`, compared with only creating its result",
            "us/node",
            mine,
            per_node(seconds["floor"], nodes),
            ratio(seconds["ours"], seconds["floor"]),
            rounds,
            OVER_FLOOR,
            sides=OVER_CREATION,
        ),
    ]


def floor(unflattened: torch.nn.Module, program: Program) -> Action:
    """Return an action that times only creating the modules, graphs and parameters."""
    modules = list(unflattened.modules())
    tensors = list(program.program.state_dict.values())
    are_parameters = [isinstance(tensor, torch.nn.Parameter) for tensor in tensors]

    def copy_state() -> None:
        with _native.GcPause():
            aten.clone_separately(tensors, are_parameters)

    copy = stopwatch(copy_state)
    return lambda: copy() + plain_creation_times(modules, 1)[0]


def assert_same_tree(ours: Any, theirs: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """Assert that two unflattened modules have equal modules, nodes and outputs."""
    pairs = zip(ours.named_modules(), theirs.named_modules(), strict=True)
    for (name, mine), (other_name, other) in pairs:
        assert name == other_name
        nodes = [getattr(getattr(m, "graph", None), "nodes", ()) for m in (mine, other)]
        for left, right in zip(*nodes, strict=True):
            assert (left.name, left.op, left.target) == (right.name, right.op, right.target), name
            assert str((left.args, left.kwargs)) == str((right.args, right.kwargs)), name
    assert list(ours.state_dict()) == list(theirs.state_dict())
    with torch.no_grad():
        assert torch.equal(ours(*inputs), theirs(*inputs))


def measure_growth(sizes: list[int], rounds: int) -> list[Figure]:
    """Compare the times per node of the largest and of the smallest hand-built program."""
    times = {}
    for size in sizes:
        program = programs.hand_built(size)
        if size == min(sizes):  # torch's time is not linear
            theirs = _torch.unflatten(program.program)
            assert_same_tree(unflatten(program.program), theirs, program.inputs)
        action = stopwatch(lambda program=program: unflatten(program.program))  # type: ignore[misc]
        times[size] = [s / program.nodes for s in interleaved({"ours": action}, rounds)["ours"]]
    return [growth("`unflatten` of a hand-built program", times, rounds)]


def measure_state(rounds: int) -> list[Figure]:
    """Measure copies of state, compared with memcpy into new memory."""
    tensors = [torch.randn(STATE_BYTES // 64) for _ in range(16)]
    arrays = [tensor.numpy() for tensor in tensors]
    copies = aten.clone_separately(tensors, [True] * len(tensors))
    assert all(map(torch.equal, copies, tensors))
    del copies
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: aten.clone_separately(tensors, [True] * len(tensors))),
            "memcpy": stopwatch(lambda: [array.copy() for array in arrays]),
        },
        rounds,
    )
    speed = {name: STATE_BYTES / 1e9 / (per_node(s, 1) / 1e6) for name, s in seconds.items()}
    return [
        Figure(
            "256 MiB of state",
            "copies of parameters, as `unflatten` makes them, compared with `memcpy`",
            "GB/s",
            speed["ours"],
            speed["memcpy"],
            ratio(seconds["memcpy"], seconds["ours"]),
            rounds,
            sides="fxpress / memcpy",
        )
    ]
