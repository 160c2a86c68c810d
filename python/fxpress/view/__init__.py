"""Show programs: as a page in the browser or in a file, or as graphs in Model Explorer.

In scripts and in notebooks:

>>> import fxpress.view
>>> fxpress.view.show(program)  # doctest: +SKIP
>>> fxpress.view.write_page("page.html", program)

Model Explorer finds the adapter by the name of this module::

    model-explorer --extensions=fxpress.view model.pt2

No code in a file is run, weights are not read, and torch is not needed for files. The extra `view`
installs Model Explorer. torch has no counterpart.
"""

import sys
import types
from typing import Any, NoReturn

from fxpress._tools.view.entry import graphs_of, show, write_page
from fxpress.view import data

__all__ = ["data", "graphs_of", "show", "write_page"]

_REPLACED = {
    "config": "graphs_of() and data.overlays() for your own configuration of Model Explorer",
    "export": "write_page()",
    "view": "show()",
}


def __getattr__(name: str) -> Any:
    """Raise AttributeError; for a removed function, the message names the replacement."""
    if name in _REPLACED:
        raise AttributeError(f"fxpress.view.{name} was removed: use {_REPLACED[name]}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _Module(types.ModuleType):
    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError("fxpress.view is a module: call fxpress.view.show(...)")


sys.modules[__name__].__class__ = _Module  # the next release removes `_Module`
