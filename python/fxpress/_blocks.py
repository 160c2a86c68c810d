"""`with` blocks that an interrupt leaves either not begun or ended.

A signal handler may raise between any two steps of Python code: between what a context manager
written in Python has done and the block that it is for. Those of `_native` are entered and left in
one step.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from fxpress import _native

os.register_at_fork(after_in_child=_native.end_pauses_of_other_threads)


def attribute_block(owner: Any, name: str, value: Any) -> _native.Block:
    """An attribute, of an object that sets it without Python code, has another value meanwhile."""
    change = functools.partial(_native.exchange_attribute, owner, name)
    return _native.Block(functools.partial(change, value), change)
