"""fxpress: a drop-in implementation of the graph half of `torch.export`, written in C++.

Change an import (`from fxpress.split_module import split_module`), or call `fxpress.install()` and
leave all other code unchanged.
"""

import importlib
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

from fxpress._base.errors import Error, InternalError, UnsupportedError, UnsupportedTorchError

if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError(
        "fxpress does not support Python with the GIL disabled: set PYTHON_GIL=1, or use a Python "
        "that is not free-threaded"
    )


def _is_in_subinterpreter() -> bool:
    for name in ("_interpreters", "_xxsubinterpreters"):  # Python < 3.13 has the second name only
        if importlib.util.find_spec(name) is not None:
            module = importlib.import_module(name)
            return bool(module.get_current() != module.get_main())
    return False


if _is_in_subinterpreter():  # importing torch or a pybind11 module would never return
    raise ImportError("fxpress does not support subinterpreters: import it in the main interpreter")

if TYPE_CHECKING:
    from fxpress import (
        archive,
        checkpoint,
        decompose,
        export,
        functional_export,
        nn_module,
        partition,
        pipeline,
        serialize,
        split_module,
        state,
        unflatten,
        view,
    )
    from fxpress._base.observing.event import Event
    from fxpress._files.archive.load import load
    from fxpress._files.archive.package import save
    from fxpress._files.errors import ArchiveError
    from fxpress._files.serde.difference import Difference, Differences, diff
    from fxpress._files.serde.hashing import graph_hash
    from fxpress._files.serde.limits import LimitError
    from fxpress._install import install, installed, is_installed, uninstall
    from fxpress._tools.profile import Profile, profile
    from fxpress._torch.build import build_info
    from fxpress._torch.serde import SerializeError

__version__ = "0.2.0"  # equals the version in pyproject.toml

__all__ = [
    "ArchiveError",
    "Difference",
    "Differences",
    "Error",
    "Event",
    "InternalError",
    "LimitError",
    "Profile",
    "SerializeError",
    "UnsupportedError",
    "UnsupportedTorchError",
    "archive",
    "build_info",
    "checkpoint",
    "decompose",
    "diff",
    "export",
    "functional_export",
    "graph_hash",
    "install",
    "installed",
    "is_installed",
    "load",
    "nn_module",
    "partition",
    "pipeline",
    "profile",
    "save",
    "serialize",
    "split_module",
    "state",
    "unflatten",
    "uninstall",
    "view",
]

_SUBMODULES = (
    *("archive", "checkpoint", "decompose", "export", "functional_export", "nn_module"),
    *("partition", "pipeline", "serialize", "split_module", "state", "unflatten", "view"),
)
_MODULES = {
    "ArchiveError": "fxpress._files.errors",
    "Difference": "fxpress._files.serde.difference",
    "Differences": "fxpress._files.serde.difference",
    "Event": "fxpress._base.observing.event",
    "LimitError": "fxpress._files.serde.limits",
    "Profile": "fxpress._tools.profile",
    "SerializeError": "fxpress._torch.serde",
    "build_info": "fxpress._torch.build",
    "diff": "fxpress._files.serde.difference",
    "graph_hash": "fxpress._files.serde.hashing",
    "install": "fxpress._install",
    "installed": "fxpress._install",
    "is_installed": "fxpress._install",
    "load": "fxpress._files.archive.load",
    "profile": "fxpress._tools.profile",
    "save": "fxpress._files.archive.package",
    "uninstall": "fxpress._install",
}

# Maps a public name to the component whose probes must pass before the name can be imported.
_COMPONENTS = {
    **dict.fromkeys(("ArchiveError", "load", "save"), "archive"),
    **dict.fromkeys(
        ("Difference", "Differences", "LimitError", "SerializeError", "diff", "graph_hash"),
        "serialize",
    ),
}


def __getattr__(name: str) -> Any:
    """Import the module that defines `name`; `import fxpress` alone does not import torch."""
    if name in _SUBMODULES:
        return importlib.import_module(f"fxpress.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = _MODULES[name]
    needed = _COMPONENTS.get(name)
    if needed is None:
        value = getattr(importlib.import_module(module), name)
    else:
        from fxpress._torch.probes import component

        with component(needed):
            value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
