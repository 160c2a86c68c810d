"""Define the options for reading an archive, and check `map_location`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fxpress._base.observing.progress import Progress
from fxpress._files.serde.values import Location, map_device

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Options:
    """Options of `fxpress.load`, for the functions that read parts of an archive."""

    map_location: Location = None
    mmap: bool = False
    load_weights: bool = True
    allow_pickle: bool = False
    check_crc: bool = True
    path: str | None = None  # the path of the archive; None for a file object or a buffer
    progress: Progress = None
    allowed: frozenset[str] = frozenset()  # the names in `allow_operators`

    def device(self, kind: str, index: int | None) -> torch.device:
        """Return the device for a tensor that was saved from the device (`kind`, `index`)."""
        if self.map_location is None and kind == "cpu":
            return _CPU
        return map_device(self.map_location, kind, index)


def check_location(map_location: Any) -> None:
    """Raise TypeError for a `map_location` of a wrong type, RuntimeError for unknown devices."""
    if not isinstance(map_location, (torch.device, str, dict, type(None))):
        raise TypeError(
            f"expected map_location to be a device, its name or a dict of names, got a "
            f"{type(map_location).__name__}"
        )
    named = map_location.values() if isinstance(map_location, dict) else [map_location]
    for place in named:
        if place is not None:
            torch.device(place)
