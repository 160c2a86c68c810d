"""How an archive is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

MapLocation: TypeAlias = torch.device | str | dict[str, str] | None
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Options:
    """The options of `load` that its parts share; see there."""

    map_location: MapLocation = None
    mmap: bool = False
    load_weights: bool = True
    allow_pickle: bool = False
    check_crc: bool = True
    path: str | None = None  # of the archive, if it is a file with a name

    def device(self, stored: str, index: int | None) -> torch.device:
        """Where a tensor goes whose device in the file is that type and index."""
        if self.map_location is None and stored == "cpu":
            return _CPU
        name = stored if index is None else f"{stored}:{index}"
        if isinstance(self.map_location, dict):
            return torch.device(self.map_location.get(name, name))
        return torch.device(name if self.map_location is None else self.map_location)


def check_location(map_location: Any) -> None:
    """TypeError for what names no device."""
    if not isinstance(map_location, (torch.device, str, dict, type(None))):
        raise TypeError(
            f"map_location is a device, its name, or a dict of names, not a "
            f"{type(map_location).__name__}"
        )
