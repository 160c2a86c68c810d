"""Print the tables, and write the JSON file."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import fxpress
from figures import Figure, Step

WIDTH = 100  # columns
MET = {True: "met", False: "NOT met", None: ""}


def show_machine() -> None:
    """Print the machine and the versions of torch and Python."""
    machine = _machine()
    gigabytes = machine["memory_bytes"] / 2**30
    build = fxpress.build_info()["native"]
    print(
        f"{machine['cpu']}, {machine['cores']} cores, {gigabytes:.0f} GiB; {machine['system']}\n"
        f"torch {torch.__version__}, Python {platform.python_version()}, "
        f"fxpress {build['version']} ({build['build_type']}, {build['compiler']})",
        flush=True,
    )


def show(figures: Sequence[Figure], *, goals: bool) -> None:
    """Print the headlines, then every figure by model.

    Args:
        goals: print the goal of each figure, and whether it is met.
    """
    console = Console(width=WIDTH if not sys.stdout.isatty() else None, highlight=False)
    console.print(_headlines(figures))
    console.print(_all(figures, goals=goals))
    steps = [figure for figure in figures if isinstance(figure, Step)]
    if steps:
        console.print(_medians(steps))
        console.print(_coverage(steps))
    for step in steps:
        if step.difference:
            text = f"differs from torch: {step.model}, {step.what}: {step.difference}"
            console.print(text, markup=False)


def _headlines(figures: Sequence[Figure]) -> Table:
    """Return a table with a line for each operation: its first figure."""
    table = Table(title="fxpress beside torch", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("operation", no_wrap=True)
    table.add_column("model")
    for title in ("fxpress", "torch", "unit", "times as fast"):
        table.add_column(title, justify="right", no_wrap=True)
    seen: set[str] = set()
    for figure in figures:
        if figure.operation and figure.operation not in seen and figure.other is not None:
            seen.add(figure.operation)
            table.add_row(
                figure.operation,
                figure.model,
                _number(figure.ours),
                _number(figure.other),
                figure.unit,
                f"[b]{_number(figure.times_as_fast)}x[/]",
            )
    return table


def _all(figures: Sequence[Figure], *, goals: bool) -> Table:
    table = Table(title="every measurement", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("what", ratio=1)
    for title in ("fxpress", "other", "unit", "ratio", "range", "rounds"):
        table.add_column(title, justify="right", no_wrap=True)
    if goals:
        table.add_column("goal", justify="right")
    for model, lines in groupby(figures, lambda figure: figure.model):
        table.add_row(f"[b]{model}[/]")
        for figure in lines:
            cells = _cells(figure)
            if goals:
                cells = (*cells, f"{figure.goal or ''} {MET[figure.met]}".strip())
            table.add_row(*cells)
    return table


def _cells(figure: Figure) -> tuple[str, ...]:
    ratio = figure.ratio
    return (
        f"  {figure.what}",
        _number(figure.ours),
        "" if figure.other is None else _number(figure.other),
        figure.unit,
        "" if ratio is None else f"{_number(ratio.median)}x",
        "" if ratio is None else f"{_number(ratio.low)} to {_number(ratio.high)}",
        str(figure.rounds),
    )


def _medians(steps: Sequence[Step]) -> Table:
    """Return a table with the median of each step over the models, and the worst model."""
    title = "torch / fxpress: median over the models, and the worst"
    table = Table(title=title, box=SIMPLE_HEAD, title_justify="left")
    table.add_column("step", no_wrap=True)
    sizes = list(dict.fromkeys(step.sizes for step in steps))
    for size in sizes:
        table.add_column(size, justify="right")
        table.add_column("worst")
    table.add_column("equal to torch's", justify="right")
    for what, group in _grouped(steps, lambda step: step.what).items():
        cells = []
        for size in sizes:
            speeds = {s.family: s.times_as_fast for s in group if s.sizes == size}
            worst = min(speeds, key=speeds.__getitem__)
            cells.append(f"[b]{_number(statistics.median(speeds.values()))}x[/]")
            cells.append(f"{_number(speeds[worst])}x, {worst}")
        equal = sum(not step.difference for step in group)
        table.add_row(what.removeprefix("torch / "), *cells, f"{equal} of {len(group)}")
    return table


def _coverage(steps: Sequence[Step]) -> Table:
    """Return a table of the calls that were instantiated, and of the reasons for full traces."""
    table = Table(title="decompositions", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("", ratio=1)
    for title in ("calls", "instantiated", "templates traced", "kept"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("reason for a full trace", ratio=2)
    reported = [step for step in steps if step.report is not None]
    for model, group in _grouped(reported, lambda step: step.model).items():
        table.add_row(f"[b]{model}[/]")
        for step in group:
            found = step.report
            assert found is not None
            counts = (found.calls, found.instantiated, found.traced, found.kept)
            what = step.what.removeprefix("torch / ")
            table.add_row(f"  {what}", *map(str, counts), escape(found.reason))
    return table


def _grouped(steps: Sequence[Step], key: Callable[[Step], str]) -> dict[str, list[Step]]:
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(key(step), []).append(step)
    return groups


def _number(value: float) -> str:
    """Return a number as text with three digits, or without decimals from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def save(path: Path, figures: Sequence[Figure]) -> None:
    """Write figures, machine and versions as JSON."""
    record = {
        "machine": _machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "fxpress": fxpress.build_info(),
        },
        "figures": [figure.record() for figure in figures],
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def utc_time() -> str:
    """Return the time of the run, for the names of its files."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "load_1_min": os.getloadavg()[0],
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
