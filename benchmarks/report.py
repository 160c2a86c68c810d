"""Describe the machine, and print the tables of a run."""

from __future__ import annotations

import os
import platform
import statistics
import sys
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path

import torch
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import fxpress
from figures import Figure, Step

WIDTH = 140  # columns
MET = {True: "met", False: "NOT met", None: ""}
COLUMNS = ("fxpress", "counterpart", "unit", "ratio", "low to high", "rounds", "goal")


def facts() -> dict[str, str]:
    """Return the date, the machine and the versions of a run that begins now."""
    cores = len(os.sched_getaffinity(0))
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    build = fxpress.build_info()["native"]
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{_cpu_model()}, {cores} cores, {gigabytes:.0f} GiB; {platform.platform()}",
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "fxpress": f"{build['version']} ({build['build_type']}, compiler {build['compiler']})",
        "load average before the run": load(),
    }


def load() -> str:
    """Return the load average of the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


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
    table = Table(title="fxpress compared with torch", box=SIMPLE_HEAD, title_justify="left")
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
    for title in COLUMNS if goals else COLUMNS[:-1]:
        table.add_column(title, justify="right", no_wrap=title != "goal")
    for model, lines in groupby(figures, lambda figure: figure.model):
        table.add_row(f"[b]{model}[/]")
        for figure in lines:
            sides = f": {figure.sides}" if figure.ratio else ""
            table.add_row(f"  {figure.what}{sides}", *cells(figure)[: len(table.columns) - 1])
    return table


def cells(figure: Figure) -> tuple[str, ...]:
    """Return the cells of a figure below `COLUMNS`."""
    ratio, goal = figure.ratio, figure.goal
    unit = "" if goal is None or goal.of_ratio else f" {figure.unit}"
    spread = ""
    if ratio and ratio.low < ratio.high:  # there are several rounds
        spread = f"{_number(ratio.low)} to {_number(ratio.high)}"
    return (
        _number(figure.ours),
        "" if figure.other is None else _number(figure.other),
        figure.unit,
        "" if ratio is None else f"{_number(ratio.median)}x",
        spread,
        str(figure.rounds),
        "" if goal is None else f"{goal}{unit}: {MET[figure.met]}",
    )


def medians(steps: Sequence[Step]) -> list[list[str]]:
    """Return a header, and a row for each step: the median ratio over the models, and the worst."""
    sizes = list(dict.fromkeys(step.sizes for step in steps))
    rows = [["step", *(f"{size}: {what}" for size in sizes for what in ("median", "worst"))]]
    rows[0].append("equal to torch's")
    for what, group in _grouped(steps, lambda step: step.what).items():
        row = [what]
        for size in sizes:
            speeds = {s.family: s.times_as_fast for s in group if s.sizes == size}
            if not speeds:  # torch cannot do this step
                row += ["", ""]
                continue
            worst = min(speeds, key=speeds.__getitem__)
            row.append(f"{_number(statistics.median(speeds.values()))}x")
            row.append(f"{_number(speeds[worst])}x, {worst}")
        equal = sum(not step.difference for step in group)
        rows.append([*row, f"{equal} of {len(group)}"])
    return rows


def _medians(steps: Sequence[Step]) -> Table:
    title = "torch / fxpress: median over the models, and the worst"
    header, *rows = medians(steps)
    table = Table(*header, title=title, box=SIMPLE_HEAD, title_justify="left")
    for row in rows:
        table.add_row(*row)
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
            table.add_row(f"  {step.what}", *map(str, counts), escape(found.reason))
    return table


def _grouped(steps: Sequence[Step], key: Callable[[Step], str]) -> dict[str, list[Step]]:
    groups: dict[str, list[Step]] = {}
    for step in steps:
        groups.setdefault(key(step), []).append(step)
    return groups


def _number(value: float) -> str:
    """Return a number as text with three digits, or without decimals from 100 on."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
