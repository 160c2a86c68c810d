"""Compute data over the nodes of a program, for Model Explorer. torch has no counterpart.

    times = fxpress.view.data.times(program, x)
    fxpress.view.data.write_overlays("folder", {"time": times})

An overlay is a dict: id of a graph -> values by nodes' ids. Model Explorer reads it as JSON.
A program and the file in which it is saved have the same ids, so an overlay of one fits the other.
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
