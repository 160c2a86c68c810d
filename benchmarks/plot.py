"""Time against the number of nodes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from bench_scale import Point

LINES = {  # name in a point -> label, colour, style
    "torch": ("torch", "#b2182b", "o-"),
    "lazy": ("torch, lazy modules", "#ef8a62", "s-"),
    "ours": ("fxpress", "#2166ac", "D-"),
    "floor": ("floor: only create the result", "#777777", "x--"),
}


def draw(points: list[Point], stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.svg; nothing, with a note, where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        print("no plot: matplotlib is not installed")
        return []
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, (label, colour, style) in LINES.items():
        measured = [(p.size, p.times[name] * p.size / 1e6) for p in points if name in p.times]
        if measured:
            axes.loglog(*zip(*measured, strict=True), style, color=colour, label=label)
    axes.set_xlabel("nodes in the graph")
    axes.set_ylabel("seconds")
    axes.set_title("split_module, partitions of 37 nodes")
    axes.grid(visible=True, which="major", alpha=0.3)
    axes.legend()
    paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths
