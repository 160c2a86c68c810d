"""Stand-ins that take the places of torch's functions and classes.

A *stand-in* is made for the purpose and is never fxpress's own object. By its identity,
``uninstall`` tells a name that some module took from torch meanwhile from a name that was imported
from fxpress on purpose. A stand-in that outlives its installation does what torch does.
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
    """Which of the two is in force for a call of this thread."""

    def policy_here(self) -> Policy | None:
        """The policy; None for torch."""

    def left_to_torch(self) -> _native.Block:
        """For the length of a block, torch."""


class StandInType(ABCMeta):
    """The metaclass of class stand-ins, and of nothing else: a door that nobody lives in.

    To call a stand-in, or to derive from it, is to call or derive from a real class: objects and
    subclasses outlive the installation, pickle, and have the metaclass they expect.
    (An ABCMeta, so that deriving from a stand-in and from an ABC is no metaclass conflict.)
    """

    _fxpress_installation: Switch  # knows which of the two is in force
    _fxpress_ours: type
    _fxpress_original: type
    _fxpress_either: tuple[type, ...]  # what an instance of either is an instance of

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
    """The metaclass of stand-ins for the classes of a metaclass."""

    class Door(StandInType, meta):  # type: ignore[misc]
        # Past what the metaclass does to new classes, such as to list them or to let nothing derive
        # from them: a stand-in is not one of its classes.
        def __new__(mcls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> Any:
            if any(isinstance(base, StandInType) for base in bases):
                return super().__new__(mcls, name, bases, body)
            return type.__new__(mcls, name, bases, body)

        def __init__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> None:
            type.__init__(cls, name, bases, body)

    made: Any = StandInType if issubclass(StandInType, meta) else Door
    # Nobody finds a stand-in class under its own name, which is that of our class: pickle that one.
    copyreg.pickle(
        made, lambda cls: (pkgutil.resolve_name, (f"{cls.__module__}:{cls.__qualname__}",))
    )
    return made


def class_stand_in(installation: Switch, ours: type, original: type) -> type:
    body = {
        "__module__": ours.__module__,
        "__qualname__": ours.__qualname__,
        "__doc__": ours.__doc__,
        "_fxpress_installation": installation,
        "_fxpress_ours": ours,
        "_fxpress_original": original,
        "_fxpress_either": (original,) if issubclass(ours, original) else (ours, original),
    }
    stand_in: Any = _stand_in_type(type(ours))(ours.__name__, (ours,), body)
    with contextlib.suppress(ValueError):  # a class whose constructor is in C may have none
        stand_in.__signature__ = inspect.signature(ours)  # inspect sees only our __call__
    return cast(type, stand_in)


def function_stand_in(
    installation: Switch, entry: Entry, ours: Function, original: Function
) -> Function:
    @functools.wraps(ours)
    def stand_in(*args: Any, **kwargs: Any) -> Any:
        policy = installation.policy_here()  # once: another thread may change it during the call
        if policy is None:
            return original(*args, **kwargs)
        try:
            return ours(*args, **kwargs)
        except UnsupportedError as error:
            if policy == "raise":
                raise
            log.warning("%s.%s: left to torch: %s", entry.module, entry.name, error, stacklevel=2)
        # Outside the handler, so that an exception of torch's does not carry ours as context.
        with installation.left_to_torch():
            return original(*args, **kwargs)

    # Where it stands is where it is found again: by pickle, and by code that fx generates.
    stand_in.__module__ = entry.module
    stand_in.__qualname__ = entry.name
    return stand_in
