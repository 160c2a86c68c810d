"""Compare the modules of exported programs with torch's, without their code and with it."""

from __future__ import annotations

from typing import Any

import torch

import programs
from compare import assert_same_graph, assert_same_output
from figures import Figure, Goal
from fxpress.export import module
from programs import Program
from timing import interleaved, per_node, ratio, stopwatch

OVER_TORCH = Goal(10, more_is_better=True)
WITH_CODE = Goal(4, more_is_better=True)


def measure(layers: int, rounds: int, *, every_model: bool) -> list[Figure]:
    """Measure a transformer.

    Args:
        layers: the number of layers of the transformer.
        rounds: how often each is measured.
        every_model: measure a CNN of twice as many blocks and, with `transformers`, a Llama of half
            as many layers as well.
    """
    figures = measure_program(programs.transformer(layers), rounds)
    if every_model:
        for program in (programs.convolutions(2 * layers), programs.llama(layers // 2)):
            figures += measure_program(program, rounds) if program else []
    return figures


def measure_program(program: Program, rounds: int) -> list[Figure]:
    """Measure `module()`, without and with the code of its graph, which torch always generates."""
    exported = program.program
    assert_same_module(module(exported), exported.module(), program.inputs)
    seconds = interleaved(
        {
            "ours": stopwatch(lambda: module(exported)),
            "code": stopwatch(lambda: module(exported).code),
            "torch": stopwatch(exported.module),
        },
        rounds,
    )
    theirs = per_node(seconds["torch"], program.nodes)

    def figure(what: str, key: str, goal: Goal, operation: str) -> Figure:
        return Figure(
            program.name,
            what,
            "us/node",
            per_node(seconds[key], program.nodes),
            theirs,
            ratio(seconds["torch"], seconds[key]),
            rounds,
            goal,
            operation,
        )

    return [
        figure("`ExportedProgram.module()`", "ours", OVER_TORCH, "ExportedProgram.module"),
        figure("`ExportedProgram.module()` and the module's `code`", "code", WITH_CODE, ""),
    ]


def assert_same_module(ours: Any, theirs: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    """Assert that two modules of a program have equal graphs, code, state, guards and outputs."""
    assert_same_graph(ours.graph, theirs.graph, with_provenance=False)
    assert ours.code == theirs.code
    names = [[name for name, _ in made.named_modules()] for made in (ours, theirs)]
    assert names[0] == names[1]
    state = [made.state_dict(keep_vars=True) for made in (ours, theirs)]
    assert list(state[0]) == list(state[1])
    assert all(state[0][name] is value for name, value in state[1].items())
    with torch.no_grad():
        assert_same_output(_tensor(ours(*inputs)), _tensor(theirs(*inputs)))


def _tensor(output: Any) -> torch.Tensor:
    found = output if isinstance(output, torch.Tensor) else output.logits
    assert isinstance(found, torch.Tensor)
    return found
