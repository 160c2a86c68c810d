"""Replace functions of torch, and set attributes, while a `with` block runs.

A signal handler may raise between the end of an `__enter__` written in Python and the start of its
block. `__exit__` then never runs. `_native.Block` avoids this: its `__enter__` and `__exit__` are
written in C++, so Python does not run signal handlers during these calls.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from fxpress import _native


def attribute_block(owner: Any, name: str, value: Any) -> _native.Block:
    """Return a context manager that sets an attribute during its block. It runs no Python code."""
    change = functools.partial(_native.exchange_attribute, owner, name)
    return _native.Block(functools.partial(change, value), change)


def replace_lock_in_children(namespace: dict[str, Any], name: str) -> None:
    """Replace a lock in forked children, because a thread of the parent may have held it."""
    os.register_at_fork(after_in_child=lambda: namespace.update({name: threading.RLock()}))


class Replacement:
    """Replaces a function of a module, or a method of a class, inside `with` blocks of a thread.

    A call from a thread inside `block()` runs `body(original, *args, **kwargs)`. A call from any
    other thread runs the original function. The constructor raises AttributeError if the owner
    lacks the function.
    """

    def __init__(self, owner: type | types.ModuleType, name: str, body: Callable[..., Any]) -> None:
        getattr(owner, name)
        self._owner, self._name, self._body = owner, name, body
        self._here = threading.local()
        self._blocks = 0  # the number of open blocks in all threads
        self._lock = threading.Lock()
        self._original: Any = None

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if self.is_replaced_here():
                return self._body(self._original, *args, **kwargs)
            return self._original(*args, **kwargs)

        self._replacement = replacement
        os.register_at_fork(after_in_child=self._after_fork)

    def is_replaced_here(self) -> bool:
        """Return whether this thread is inside a `with block()` statement."""
        return bool(getattr(self._here, "blocks", 0))

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Run a block in which calls from this thread run `body` instead of the function."""
        with self._lock:
            if not self._blocks:
                self._replace()
            self._blocks += 1
        self._here.blocks = getattr(self._here, "blocks", 0) + 1
        try:
            yield
        finally:
            self._here.blocks -= 1
            with self._lock:
                self._blocks -= 1
                if not self._blocks:
                    self._restore()

    def _replace(self) -> None:
        original = vars(self._owner)[self._name]
        if original is self._replacement:
            return  # other code saved the attribute inside an earlier block and restored it later
        self._original = original
        setattr(self._owner, self._name, functools.update_wrapper(self._replacement, original))

    def _restore(self) -> None:
        if vars(self._owner)[self._name] is self._replacement:
            setattr(self._owner, self._name, self._original)

    def _after_fork(self) -> None:
        """In a forked child, forget the lock and the open blocks of the parent's other threads."""
        self._lock = threading.Lock()
        self._blocks = getattr(self._here, "blocks", 0)
        if not self._blocks:
            self._restore()
