"""Compare strict exports of small transformers of many architectures with torch's."""

from __future__ import annotations

import functools
import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

import fxpress
from bench_capture import installed, settled
from figures import Figure, Goal
from fxpress.functional_export import reuse_report
from progress import Progress
from timing import interleaved, per_node, ratio

LAYERS = 12
EXPORT = Goal(1.5, more_is_better=True)


def measure(progress: Progress) -> list[Figure]:
    """Measure the strict export of each architecture that the tests know."""
    if not find_architectures():
        return []
    from tests.support import architectures

    figures = []
    for name in architectures.NAMES:
        progress(f"strict exports: {name}")
        figures.append(_measure(name, architectures.architecture(name, LAYERS)))
    return figures


def find_architectures() -> bool:
    """Return whether the models of the tests can be imported, after a message if they cannot."""
    missing = [name for name in ("transformers", "pytest") if not importlib.util.find_spec(name)]
    if missing:
        print(f"no architectures: {' and '.join(missing)} not installed")
        return False
    root = str(Path(__file__).parents[1])
    if root not in sys.path:
        sys.path.insert(0, root)
    return True


def _measure(name: str, made: Any) -> Figure:
    from tests.support.programs import assert_same_program

    export = functools.partial(torch.export.export, made.model, made.args, made.kwargs, strict=True)
    with fxpress.installed():
        ours = export()
    report = reuse_report()
    assert_same_program(ours, export())
    reused = f"{len(report.instantiated)} of {len(report.calls)} calls of modules"
    seconds = interleaved({"ours": installed(export, "guards"), "torch": settled(export)}, 1)
    return Figure(
        f"{name}, {LAYERS} layers, {len(ours.graph.nodes):,} nodes",
        f"strict export, in which {reused} reuse the trace of an identical module",
        "s",
        per_node(seconds["ours"], 1) / 1e6,
        per_node(seconds["torch"], 1) / 1e6,
        ratio(seconds["torch"], seconds["ours"]),
        1,
        EXPORT,
    )
