"""fxpress: a drop-in, C++-accelerated implementation of the graph half of `torch.export`.

Change an import (`from fxpress.split_module import split_module`), or call `fxpress.install()` and
change nothing at all.
"""

from fxpress._build import build_info
from fxpress._errors import InternalError, UnsupportedError
from fxpress._install import install, installed, is_installed, uninstall

__all__ = [
    "InternalError",
    "UnsupportedError",
    "build_info",
    "install",
    "installed",
    "is_installed",
    "uninstall",
]
