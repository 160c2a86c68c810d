"""Exported programs as bytes, back and in canonical form, against torch; growth and memory."""

from __future__ import annotations

import functools
from typing import Any

from torch._export.serde import schema
from torch._export.serde import serialize as _torch

import memory
import programs
from figures import Figure, Goal
from fxpress.serialize import SerializedArtifact, canonicalize, deserialize, serialize
from programs import Program
from timing import interleaved, per_node, ratio, stopwatch

TORCH_ROUNDS = 5
LARGE = 500  # layers of a transformer of 18,000 nodes
WRITING = Goal(150, more_is_better=True, aim=200)
READING = Goal(40, more_is_better=True, aim=60)
CANONICAL = Goal(40, more_is_better=True)
GROWTH = Goal(1.3)
PEAK = Goal(0.2, of_ratio=False)

# The program alone: state, constants and inputs are torch.save's.
ALONE: dict[str, Any] = {
    "serialize_state_dict": False,
    "serialize_constants": False,
    "serialize_example_inputs": False,
}


def measure(rounds: int, large: bool) -> list[Figure]:
    """The default model; with `large` one of 18,000 nodes as well."""
    figures = measure_program(programs.transformer(), min(rounds, TORCH_ROUNDS))
    if large:
        figures += measure_program(programs.transformer(LARGE), 2)
    return figures


def measure_program(program: Program, rounds: int) -> list[Figure]:
    """Results that are equal first, then times."""
    exported = program.program
    ours, theirs = serialize(exported), _torch.serialize(exported)
    assert ours == theirs
    read, read_by_torch = deserialize(ours), _torch.deserialize(ours)
    assert str(read) == str(read_by_torch)
    # State as a dict: what torch.load does with it is not measured.
    alone = SerializedArtifact(ours.exported_program, exported.state_dict, exported.constants, b"")
    stored = _torch._bytes_to_dataclass(schema.ExportedProgram, ours.exported_program)
    assert canonicalize(stored) == _torch.canonicalize(stored)
    cases: tuple[tuple[str, Any, Any, Goal | None], ...] = (
        (
            "serialize",
            functools.partial(serialize, exported, **ALONE),
            functools.partial(_torch.serialize, exported, **ALONE),
            WRITING,
        ),
        (
            "serialize, with state",
            functools.partial(serialize, exported),
            functools.partial(_torch.serialize, exported),
            None,
        ),
        (
            "deserialize",
            functools.partial(deserialize, alone),
            functools.partial(_torch.deserialize, alone),
            READING,
        ),
        (
            "deserialize, with state",
            functools.partial(deserialize, ours),
            functools.partial(_torch.deserialize, ours),
            None,
        ),
        (
            "canonicalize",
            functools.partial(canonicalize, stored),
            functools.partial(_torch.canonicalize, stored),
            CANONICAL,
        ),
    )
    figures = []
    for label, our_way, torchs_way, goal in cases:
        seconds = interleaved({"ours": stopwatch(our_way), "torch": stopwatch(torchs_way)}, rounds)
        figures.append(
            Figure(
                program.name,
                f"torch / {label}",
                "us/node",
                per_node(seconds["ours"], program.nodes),
                per_node(seconds["torch"], program.nodes),
                ratio(seconds["torch"], seconds["ours"]),
                rounds,
                goal,
            )
        )
    return figures


def measure_growth(sizes: list[int], rounds: int) -> list[Figure]:
    """Microseconds a node of the largest hand-built program over those of the smallest."""
    times = {}
    peaks = []
    for size in sizes:
        program = programs.hand_built(size)
        alone = functools.partial(serialize, program.program, **ALONE)
        artifact, needed = memory.measure(alone)
        if needed is not None:
            peaks.append(needed.beyond / len(artifact.exported_program))
        seconds = interleaved({"ours": stopwatch(alone)}, rounds)["ours"]
        times[size] = [s / program.nodes for s in seconds]
    small, large = times[sizes[0]], times[sizes[-1]]
    growth = Figure(
        "hand-built",
        f"growth of serialize, {sizes[0]:,} to {sizes[-1]:,}",
        "us/node",
        per_node(large, 1),
        per_node(small, 1),
        ratio(large, small),
        rounds,
        GROWTH,
    )
    name = f"hand-built, {sizes[-1]:,}"
    what = "peak of serialize beyond its bytes"
    return [growth, *(Figure(name, what, "of them", peak, goal=PEAK) for peak in peaks[-1:])]
