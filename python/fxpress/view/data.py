"""Data over the nodes of a program, for Model Explorer. Beyond torch.

    times = fxpress.view.data.times(program, x)
    fxpress.view.data.write_overlays("folder", {"time": times})

An overlay is a dict that Model Explorer reads as JSON: a graph's id -> the values of its nodes. The
overlay of a program in memory also fits the program's file.
"""

from fxpress._tools.view.data import (
    decomposition,
    difference,
    overlays,
    reuse,
    times,
    write_overlays,
)

__all__ = ["decomposition", "difference", "overlays", "reuse", "times", "write_overlays"]
