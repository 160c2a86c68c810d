"""Time against the number of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import figures

LINES = {  # name -> label, colour, style
    "torch": ("torch", "#b2182b", "o-"),
    "lazy": ("torch, lazy modules", "#ef8a62", "s-"),
    "ours": ("fxpress", "#2166ac", "D-"),
    "floor": ("floor: only create the result", "#777777", "x--"),
}


_HAND_BUILT = "hand-built, "
# What a line of the table compares -> the name of the other side.
_OTHERS = {"split / floor": "floor", "torch / split": "torch", "torch lazy / split": "lazy"}


def draw(lines: Sequence[figures.Figure], stem: Path) -> list[Path]:
    """Writes `stem`.png and `stem`.svg; nothing for fewer than two sizes."""
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
    """Name -> nodes of a hand-built graph -> seconds."""
    times: dict[str, dict[int, float]] = {}
    for line in lines:
        if line.model.startswith(_HAND_BUILT) and line.what in _OTHERS and line.other is not None:
            size = int(line.model.removeprefix(_HAND_BUILT).replace(",", ""))
            times.setdefault("ours", {})[size] = line.ours * size / 1e6
            times.setdefault(_OTHERS[line.what], {})[size] = line.other * size / 1e6
    return times
