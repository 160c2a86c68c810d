"""Create stand-ins: objects that replace torch's functions and classes.

A *stand-in* is a separate object that forwards to fxpress's object. Names that were imported from
torch while fxpress was installed refer to stand-ins, so ``uninstall`` can distinguish them from
names that were imported from fxpress. After ``uninstall``, a stand-in forwards to torch's object.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import logging
import pkgutil
import types
from abc import ABCMeta
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, cast

from fxpress import _native
from fxpress._base.errors import UnsupportedError
from fxpress._install.table import Entry

Policy: TypeAlias = Literal["raise", "torch"]
Function: TypeAlias = Callable[..., Any]

log = logging.getLogger("fxpress")


class Switch(Protocol):
    """Selects fxpress's object or torch's for the calls of a thread; see `Installation`."""

    def policy_here(self) -> Policy | None: ...

    def left_to_torch(self) -> _native.Block: ...


class StandInType(ABCMeta):
    """The metaclass of stand-ins; calls and subclassing use fxpress's class or torch's class."""

    # ABCMeta is the base, because a class may derive from a stand-in and from an ABC.
    _fxpress_installation: Switch  # selects `_fxpress_ours` or `_fxpress_original`
    _fxpress_ours: type
    _fxpress_original: type
    _fxpress_either: tuple[type, ...]  # the classes for isinstance() and issubclass()

    def __new__(
        mcls, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **kwds: Any
    ) -> Any:
        if not any(isinstance(base, StandInType) for base in bases):
            return super().__new__(mcls, name, bases, namespace, **kwds)
        real = tuple(b._fxpress_current() if isinstance(b, StandInType) else b for b in bases)
        return types.new_class(name, real, kwds, lambda body: body.update(namespace))

    def _fxpress_current(cls) -> type:
        torchs = cls._fxpress_installation.policy_here() is None
        return cls._fxpress_original if torchs else cls._fxpress_ours

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return cls._fxpress_current()(*args, **kwargs)

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls._fxpress_either)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._fxpress_either)


@functools.cache
def _stand_in_type(meta: type) -> Any:
    """Return the metaclass of stand-ins for classes with the metaclass `meta`."""

    class StandInMeta(StandInType, meta):  # type: ignore[misc]
        # A stand-in is created without `meta`, which may register its classes or forbid subclasses.
        def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
            if any(isinstance(base, StandInType) for base in bases):
                return super().__new__(mcls, name, bases, body)
            return type.__new__(mcls, name, bases, body)

        def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> None:
            type.__init__(cls, name, bases, body)

    made: Any = StandInType if issubclass(StandInType, meta) else StandInMeta
    copyreg.pickle(made, _reduce_to_ours)
    return made


def _reduce_to_ours(stand_in: Any) -> tuple[Callable[[str], Any], tuple[str]]:
    """Pickle a stand-in as fxpress's class, because `uninstall` rebinds torch's name."""
    ours = stand_in._fxpress_ours
    return pkgutil.resolve_name, (f"{ours.__module__}:{ours.__qualname__}",)


def class_stand_in(installation: Switch, ours: type, original: type) -> type:
    body = {
        "__module__": original.__module__,
        "__qualname__": original.__qualname__,
        "__doc__": ours.__doc__,
        "_fxpress_installation": installation,
        "_fxpress_ours": ours,
        "_fxpress_original": original,
        "_fxpress_either": (original,) if issubclass(ours, original) else (ours, original),
    }
    stand_in: Any = _stand_in_type(type(ours))(ours.__name__, (ours,), body)
    with contextlib.suppress(ValueError):  # constructors in C may have no signature
        stand_in.__signature__ = inspect.signature(original)  # replaces StandInType.__call__'s
    return cast(type, stand_in)


def function_stand_in(
    installation: Switch, entry: Entry, ours: Function, original: Function
) -> Function:
    @functools.wraps(original)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        policy = installation.policy_here()  # read once, since threads may change it
        if policy is None:
            return original(*args, **kwargs)
        try:
            return ours(*args, **kwargs)
        except UnsupportedError as error:
            if policy == "raise":
                raise
            log.warning("fallback to %s.%s: %s", entry.module, entry.name, error, stacklevel=2)
        # Outside `except`, so that `error` does not become the __context__ of torch's exception.
        with installation.left_to_torch():
            return original(*args, **kwargs)

    stand_in.__doc__ = ours.__doc__
    with contextlib.suppress(ValueError):  # a function in C may have no signature
        stand_in.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    vars(stand_in).pop("__wrapped__")  # set by functools.wraps; `original` may define another
    vars(stand_in).update(vars(original))
    return stand_in
