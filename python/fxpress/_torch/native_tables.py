"""Fill the native table of Python objects in `csrc/fx/symbols.def`, for native code on graphs.

A module that uses native code for graphs calls `fx` at import, and the first call fills the table.
`_graphs.engine` and `_files.serde.native_table` fill the native tables of the engine and of serde
in the same way.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable

from fxpress import _native
from fxpress._base.replacement import replace_lock_in_children

_lock = threading.RLock()
replace_lock_in_children(globals(), "_lock")


def fill_once(fill: Callable[[], None]) -> Callable[[], None]:
    """Return a function that calls `fill` only once, even if several threads call it."""
    filled = False

    @functools.wraps(fill)
    def wrapper() -> None:
        nonlocal filled
        with _lock:
            if not filled:
                fill()
                filled = True

    return wrapper


@functools.cache
def tensor_part_symbol(name: str) -> object:
    """Return an attribute of the `_aten` extension; None if this torch has no such extension."""
    try:
        from fxpress._torch import aten
    except ImportError:
        return None
    found: object = getattr(aten, name)
    return found


@fill_once
def fx() -> None:
    """Fill the native table of `csrc/fx/symbols.def`, which all native code for graphs needs."""
    from fxpress._base.errors import InternalError
    from fxpress._torch import deferred_code, tables

    _native.initialize(
        tables.native_symbols(
            deferred_body=deferred_code.BODY,
            materialize=deferred_code.materialize,
            errors={"internal_error": InternalError},
            fake_like=functools.partial(tensor_part_symbol, "fake_like"),  # loaded on first use
        )
    )
