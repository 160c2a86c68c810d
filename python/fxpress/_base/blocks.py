"""`with` blocks that an interrupt cannot leave open.

A signal handler may raise between any two steps of Python code, so also between the `__enter__` of
a context manager written in Python and its block. The blocks of `_native` are entered and left in
one step.
"""

from __future__ import annotations

import functools
from typing import Any

from fxpress import _native


def attribute_block(owner: Any, name: str, value: Any) -> _native.Block:
    """Return a block in which an attribute, set without Python code, has another value."""
    change = functools.partial(_native.exchange_attribute, owner, name)
    return _native.Block(functools.partial(change, value), change)
