"""fxpress: a drop-in implementation of the graph half of `torch.export`, written in C++.

Change an import (`from fxpress.split_module import split_module`), or call `fxpress.install()` and
change nothing at all.
"""

import importlib
from typing import TYPE_CHECKING, Any

from fxpress._errors import Error, InternalError, UnsupportedError, UnsupportedTorchError

if TYPE_CHECKING:
    from fxpress import view
    from fxpress._archive.errors import ArchiveError
    from fxpress._archive.load import load
    from fxpress._archive.package import save
    from fxpress._build import build_info
    from fxpress._install import install, installed, is_installed, uninstall
    from fxpress._observing.event import Event
    from fxpress._observing.profile import Profile, profile
    from fxpress._serde.difference import Difference, diff
    from fxpress._serde.hashing import graph_hash
    from fxpress._serde.limits import LimitError
    from fxpress._torch.serde import SerializeError

__all__ = [
    "ArchiveError",
    "Difference",
    "Error",
    "Event",
    "InternalError",
    "LimitError",
    "Profile",
    "SerializeError",
    "UnsupportedError",
    "UnsupportedTorchError",
    "build_info",
    "diff",
    "graph_hash",
    "install",
    "installed",
    "is_installed",
    "load",
    "profile",
    "save",
    "uninstall",
    "view",
]


_MODULES = {
    "ArchiveError": "fxpress._archive.errors",
    "Difference": "fxpress._serde.difference",
    "Event": "fxpress._observing.event",
    "LimitError": "fxpress._serde.limits",
    "Profile": "fxpress._observing.profile",
    "SerializeError": "fxpress._torch.serde",
    "build_info": "fxpress._build",
    "diff": "fxpress._serde.difference",
    "graph_hash": "fxpress._serde.hashing",
    "install": "fxpress._install",
    "installed": "fxpress._install",
    "is_installed": "fxpress._install",
    "load": "fxpress._archive.load",
    "profile": "fxpress._observing.profile",
    "save": "fxpress._archive.package",
    "uninstall": "fxpress._install",
}

# Package of fxpress -> the room that it belongs to.
_ROOMS = {"_archive": "archive", "_serde": "serialize", "_torch": "serialize"}


def __getattr__(name: str) -> Any:
    """Import the module that has the name: `import fxpress` alone imports nothing of torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("fxpress")
    if name == "view":  # the module can be called
        return importlib.import_module("fxpress.view")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    needed = _ROOMS.get(module.split(".")[1])
    if needed is None:
        value = getattr(importlib.import_module(module), name)
    else:
        from fxpress._torch.probes import room

        with room(needed):
            value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES, "__version__", "view"})
