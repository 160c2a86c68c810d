"""Functions of torch that do something else in the blocks of a thread, and attributes in blocks.

A signal handler may raise between any two steps of Python code, so also between the `__enter__` of
a context manager written in Python and its block. The blocks of `_native` are entered and left in
one step.
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
    """Return a block in which an attribute, set without Python code, has another value."""
    change = functools.partial(_native.exchange_attribute, owner, name)
    return _native.Block(functools.partial(change, value), change)


class Replacement:
    """Replaces a function of a module, or a method of a class, in blocks of a thread.

    `body` is called with the original and its arguments in threads that are in a block. The others
    call the original through it. AttributeError if the owner has no such function.
    """

    def __init__(self, owner: type | types.ModuleType, name: str, body: Callable[..., Any]) -> None:
        getattr(owner, name)
        self._owner, self._name, self._body = owner, name, body
        self._here = threading.local()
        self._blocks = 0  # the open blocks of all threads
        self._lock = threading.Lock()
        self._original: Any = None

        def replacement(*args: Any, **kwargs: Any) -> Any:
            if self.is_replaced_here():
                return self._body(self._original, *args, **kwargs)
            return self._original(*args, **kwargs)

        self._replacement = replacement
        os.register_at_fork(after_in_child=self._after_fork)

    def is_replaced_here(self) -> bool:
        """Return whether this thread is in a block."""
        return bool(getattr(self._here, "blocks", 0))

    @contextlib.contextmanager
    def block(self) -> Iterator[None]:
        """Return a block in which this thread gets the replacement."""
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
            return  # somebody who replaced it in an earlier block has put it back
        self._original = original
        setattr(self._owner, self._name, functools.update_wrapper(self._replacement, original))

    def _restore(self) -> None:
        if vars(self._owner)[self._name] is self._replacement:
            setattr(self._owner, self._name, self._original)

    def _after_fork(self) -> None:
        """In a child: a thread of its parent may hold the lock, or have blocks that do not end."""
        self._lock = threading.Lock()
        self._blocks = getattr(self._here, "blocks", 0)
        if not self._blocks:
            self._restore()
