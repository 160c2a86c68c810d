"""The options for reading an archive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fxpress._base.observing.progress import Progress
from fxpress._files.serde.values import Location, map_device

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Options:
    """The options of `load` that several of its parts use; see `load`."""

    map_location: Location = None
    mmap: bool = False
    load_weights: bool = True
    allow_pickle: bool = False
    check_crc: bool = True
    path: str | None = None  # of the archive, if it is a named file
    progress: Progress = None
    allowed: frozenset[str] = frozenset()  # operators

    def device(self, kind: str, index: int | None) -> torch.device:
        """Return the new device of a tensor that was on a device of this type and index."""
        if self.map_location is None and kind == "cpu":
            return _CPU
        return map_device(self.map_location, kind, index)


def check_location(map_location: Any) -> None:
    """Raise TypeError for an object that cannot name a device, RuntimeError for an unknown name."""
    if not isinstance(map_location, (torch.device, str, dict, type(None))):
        raise TypeError(
            f"expected map_location to be a device, its name or a dict of names, got a "
            f"{type(map_location).__name__}"
        )
    named = map_location.values() if isinstance(map_location, dict) else [map_location]
    for place in named:
        if place is not None:
            torch.device(place)
