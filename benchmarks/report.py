"""The table on the screen and the JSON file."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

import fxpress
from figures import Figure

HEAD = ("model", "what", "fxpress", "other", "unit", "ratio", "range", "rounds", "goal", "met")
LEFT_ALIGNED = 2  # columns
PIPE_WIDTH = 180
MET = {True: "yes", False: "NO", None: ""}


def show(figures: list[Figure]) -> None:
    """Prints the table: with rich where it is installed, as plain text otherwise."""
    rows = [_cells(figure) for figure in figures]
    if importlib.util.find_spec("rich") is None:
        print("(pip install rich gives a nicer table)")
        _show_plain(rows)
    else:
        _show_rich(rows)


def _cells(figure: Figure) -> tuple[str, ...]:
    ratio = figure.ratio
    return (
        figure.model,
        figure.what,
        f"{figure.ours:.2f}",
        "" if figure.other is None else f"{figure.other:.2f}",
        figure.unit,
        "" if ratio is None else f"{ratio.median:.2f}x",
        "" if ratio is None else f"{ratio.low:.2f}..{ratio.high:.2f}",
        str(figure.rounds),
        "" if figure.goal is None else str(figure.goal),
        MET[figure.met],
    )


def _show_plain(rows: list[tuple[str, ...]]) -> None:
    widths = [max(len(row[i]) for row in (HEAD, *rows)) for i in range(len(HEAD))]
    rule = tuple("-" * width for width in widths)
    for row in (HEAD, rule, *rows):
        cells = [
            cell.ljust(width) if i < LEFT_ALIGNED else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _show_rich(rows: list[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table()
    for i, title in enumerate(HEAD):
        text = i < LEFT_ALIGNED
        table.add_column(title, justify="left" if text else "right", no_wrap=not text)
    for row in rows:
        style = {"yes": "green", "NO": "red"}.get(row[-1], "")
        table.add_row(*row[:-1], f"[{style}]{row[-1]}[/]" if style else row[-1])
    # A pipe has no width: nothing is cut to that of a terminal.
    Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(table)


def save(path: Path, figures: list[Figure], extra: dict[str, Any]) -> None:
    """Writes figures, machine and versions as JSON."""
    record = {
        "machine": _machine(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "fxpress": fxpress.build_info(),
        },
        "figures": [figure.record() for figure in figures],
        **extra,
    }
    path.write_text(json.dumps(record, indent=1) + "\n")


def stamp() -> str:
    """The time of the run, for the names of its files."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H%M%SZ")


def _machine() -> dict[str, Any]:
    return {
        "system": platform.platform(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
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
