"""Create an opaque value: torch knows only the name of its class."""

from __future__ import annotations

import functools
import types
from typing import Any

from fxpress._torch.versions import features


@functools.cache
def _kind() -> type:
    """The class, which torch registers once in a process."""
    from torch._library import opaque_object as library

    is_renamed = features.opaque_values_are_custom_classes
    base = library.CustomClassBase if is_renamed else library.OpaqueBase
    made = types.new_class("Handle", (base,))
    made.__module__ = __name__
    globals()["Handle"] = made  # for pickle
    if is_renamed:
        library.register_custom_class(made, typ="symbolic")
    else:
        library.register_opaque_type(made, typ="reference")
    return made


def handle_of_a_custom_class() -> Any:
    """An opaque value, which newer releases call an object of a custom class."""
    return _kind()()
