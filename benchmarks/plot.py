"""Draw time against the number of nodes, and how many times as fast each operation is."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import figures

LINES = {  # name -> label, colour, style
    "torch": ("torch", "#b2182b", "o-"),
    "lazy": ("torch, lazy modules", "#ef8a62", "s-"),
    "ours": ("fxpress", "#2166ac", "D-"),
    "floor": ("floor: only create the result", "#777777", "x--"),
}


# The sides of a line's ratio -> the name of the counterpart.
_OTHERS = {
    "torch / fxpress": "torch",
    figures.OVER_LAZY: "lazy",
    figures.OVER_CREATION: "floor",
}


def draw(lines: Sequence[figures.Figure], stem: Path) -> list[Path]:
    """Write all pictures for which there are enough figures; return the files."""
    return [*_draw_times(lines, stem), *_draw_speeds(lines, stem.with_name(f"{stem.name}-speed"))]


def _draw_speeds(lines: Sequence[figures.Figure], stem: Path) -> list[Path]:
    """Write a bar for each operation that has a headline to `stem`.svg."""
    # The first figure of each operation, as in the table.
    headlines = list({line.operation: line for line in reversed(lines) if line.operation}.values())
    headlines.reverse()
    if not headlines:
        return []
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    path = stem.with_suffix(".svg")
    with _equal_files():
        figure = Figure(figsize=(8, 0.6 + 0.3 * len(headlines)), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        speeds = [line.times_as_fast for line in headlines]
        bars = axes.barh(range(len(speeds)), speeds, color="#2166ac")
        axes.set_yticks(range(len(speeds)), [line.operation for line in headlines])
        axes.bar_label(bars, [f"{speed:.3g}x" for speed in speeds], padding=3)
        axes.set_xscale("log")
        axes.set_xlim(min(1, 0.8 * min(speeds)), 2 * max(speeds))
        axes.invert_yaxis()
        axes.set_xlabel("times as fast as torch")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, metadata={"Date": None})
    return [path]


def _equal_files() -> AbstractContextManager[Any]:
    """Return a block in which equal pictures give equal files, and text is not drawn as paths."""
    from matplotlib import rc_context

    settings: AbstractContextManager[Any] = rc_context(
        {"svg.hashsalt": "fxpress", "svg.fonttype": "none"}
    )
    return settings


def draw_sizes(lines: Sequence[figures.Figure], folder: Path) -> list[Path]:
    """Write a picture for each operation of the group `sizes`: seconds against nodes."""
    points: dict[str, list[figures.Figure]] = {}
    for line in lines:
        if line.group == "sizes":
            points.setdefault(line.operation, []).append(line)
    folder.mkdir(parents=True, exist_ok=True)
    return [_draw_operation(operation, sizes, folder) for operation, sizes in points.items()]


def _draw_operation(operation: str, sizes: list[figures.Figure], folder: Path) -> Path:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    path = folder / f"{operation.rpartition('.')[2]}.svg"
    nodes = [size.nodes for size in sizes]
    with _equal_files():
        figure = Figure(figsize=(6, 3.5), layout="constrained")
        FigureCanvasSVG(figure)
        axes = figure.add_subplot()
        for name, values in (
            ("torch", [size.other or 0 for size in sizes]),
            ("ours", [size.ours for size in sizes]),
        ):
            label, colour, style = LINES[name]
            seconds = [value * count / 1e6 for value, count in zip(values, nodes, strict=True)]
            axes.loglog(nodes, seconds, style, color=colour, label=label)
        axes.set_xticks(nodes, [f"{count:,}" for count in nodes])
        axes.minorticks_off()
        axes.set_xlabel("nodes in the graph")
        axes.set_ylabel("seconds")
        axes.set_title(operation)
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend()
        figure.savefig(path, metadata={"Date": None})
    return path


def _draw_times(lines: Sequence[figures.Figure], stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; nothing for fewer than two sizes."""
    times = _times(lines)
    if len(times.get("ours", ())) < 2:
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (label, colour, style) in LINES.items():
        if name in times:
            axes.loglog(*zip(*times[name].items(), strict=True), style, color=colour, label=label)
    axes.set_xlabel("nodes in the graph")
    axes.set_ylabel("seconds")
    axes.set_title("split_module, partitions of 37 nodes")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def _times(lines: Sequence[figures.Figure]) -> dict[str, dict[int, float]]:
    """Return name -> nodes of a hand-built graph -> seconds."""
    times: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.group == "scale" and line.nodes and line.other is not None:
            times.setdefault("ours", {})[line.nodes] = line.ours * line.nodes / 1e6
            times.setdefault(_OTHERS[line.sides], {})[line.nodes] = line.other * line.nodes / 1e6
    return times
