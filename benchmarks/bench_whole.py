"""Compare decompositions by full traces with torch's: fxpress must never be slower."""

from __future__ import annotations

from typing import Any

from torch.export import ExportedProgram

import fxpress
import whole_programs
from bench_decompose import TABLES, installed, processor_time
from figures import Figure, Goal
from fxpress import decompose
from progress import Progress
from timing import interleaved, per_node, ratio

NEVER_SLOWER = Goal(1, more_is_better=True)


def measure(rounds: int, progress: Progress) -> list[Figure]:
    """Measure `run_decompositions` of programs that write, branch, or depend on data.

    Args:
        rounds: how often each is measured.
        progress: is called for each program.
    """
    figures = []
    for name, program in whole_programs.all_of_them():
        progress(f"decompose: {name}")
        for table in TABLES:
            figures.append(measure_table(name, table, program, rounds, NEVER_SLOWER))
    return figures


def measure_table(
    name: str, table: str, program: ExportedProgram, rounds: int, goal: Goal | None = None
) -> Figure:
    """Assert that both programs call the same operators, then measure, without kept templates."""
    given = TABLES[table]
    with fxpress.installed():
        ours = program.run_decompositions(given)
    theirs = program.run_decompositions(given)
    assert _targets(ours) == _targets(theirs), f"{name}: {decompose.report()}"
    nodes = len(theirs.graph.nodes)
    seconds = interleaved(
        {
            "ours": installed(program, given, keep=False),
            "torch": processor_time(program, given),
        },
        rounds,
    )
    return Figure(
        name,
        f"`run_decompositions`, {table}, new templates",
        "us/node",
        per_node(seconds["ours"], nodes),
        per_node(seconds["torch"], nodes),
        ratio(seconds["torch"], seconds["ours"]),
        rounds,
        goal,
    )


def _targets(program: ExportedProgram) -> list[Any]:
    """Return the targets of a program's calls, in order."""
    return [n.target for n in program.graph.nodes if n.op == "call_function"]
