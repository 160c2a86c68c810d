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

# Public name -> the module that defines it, and the component whose probes (checks that torch has
# what fxpress uses) must pass before the import ("": none). Other names in `__all__` are modules.
_MODULES = {
    "ArchiveError": ("fxpress._files.errors", "archive"),
    "Difference": ("fxpress._files.serde.difference", "serialize"),
    "Differences": ("fxpress._files.serde.difference", "serialize"),
    "Event": ("fxpress._base.observing.event", ""),
    "LimitError": ("fxpress._files.serde.limits", "serialize"),
    "Profile": ("fxpress._tools.profile", ""),
    "SerializeError": ("fxpress._torch.serde", "serialize"),
    "build_info": ("fxpress._torch.build", ""),
    "diff": ("fxpress._files.serde.difference", "serialize"),
    "graph_hash": ("fxpress._files.serde.hashing", "serialize"),
    "install": ("fxpress._install", ""),
    "installed": ("fxpress._install", ""),
    "is_installed": ("fxpress._install", ""),
    "load": ("fxpress._files.archive.load", "archive"),
    "profile": ("fxpress._tools.profile", ""),
    "save": ("fxpress._files.archive.package", "archive"),
    "uninstall": ("fxpress._install", ""),
}


def __getattr__(name: str) -> Any:
    """Import the module that defines `name`; `import fxpress` alone does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _MODULES:
        return importlib.import_module(f"fxpress.{name}")
    module, needed = _MODULES[name]
    if not needed:
        value = getattr(importlib.import_module(module), name)
    else:
        from fxpress._torch.probes import component

        with component(needed):
            value = getattr(importlib.import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, "__version__"})
