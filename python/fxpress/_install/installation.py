"""Replaces torch's objects by stand-ins in the entire process, and restores them.

Only names in the modules in ``sys.modules`` are rebound. Class attributes, closures and containers
keep their values. A name that another thread is importing meanwhile may keep its value, too.
"""

from __future__ import annotations

import collections
import functools
import importlib
import os
import sys
import threading
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from fxpress import _native
from fxpress._base.errors import UnsupportedError
from fxpress._base.replacement import attribute_block, replace_lock_in_children
from fxpress._install.stand_ins import Policy, class_stand_in, function_stand_in, log
from fxpress._install.table import Entry
from fxpress._torch.probes import COMPATIBILITY_MARKS, is_due_to_torch

_P = ParamSpec("_P")
_R = TypeVar("_R")


@dataclass(frozen=True, eq=False)
class Patch:
    """The object of fxpress, the object of torch and the stand-in for one `Entry`."""

    ours: Any  # fxpress's object
    original: Any  # the object of torch
    stand_in: Any  # the object that replaces `original`


class _Here(threading.local):
    left = False  # True while this thread runs torch's original; stand-ins then call torch


def is_disabled() -> bool:
    """Return whether the environment variable `FXPRESS_DISABLE` is set."""
    return os.environ.get("FXPRESS_DISABLE", "").strip().lower() in ("1", "true", "yes")


class Installation:
    """Stores the leases (calls of `install` that have not been undone) and patches of a process."""

    def __init__(self, components: Iterable[Entry]) -> None:
        # Native code makes all changes of an installation at once: other threads, signal handlers
        # and forked processes see all or none.
        self._native = _native.Installation()
        self._here = _Here()
        self._components = components
        self._lock = threading.RLock()
        replace_lock_in_children(vars(self), "_lock")
        self._known: dict[Entry, Patch] = {}  # reused by later installations
        self._announced = False  # whether it was logged that FXPRESS_DISABLE is set

    def acquire(self, policy: Policy) -> None:
        self._native.acquire(self._prepare(policy))

    def release(self) -> None:
        """Release the newest lease that is not held by a context manager."""
        self._native.release_newest()

    def block(self, policy: Policy) -> _native.InstalledBlock:
        """Return a context manager and decorator that holds a lease during a block or a call."""
        return _native.InstalledBlock(
            self._native,
            functools.partial(self._prepare, policy),
            functools.partial(self._decorate, policy),
        )

    def _decorate(self, policy: Policy, function: Callable[_P, _R]) -> Callable[_P, _R]:
        @functools.wraps(function)
        def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
            with self.block(policy):
                return function(*args, **kwargs)

        return call

    @property
    def policy(self) -> Policy | None:
        """The `on_unsupported` of the newest open lease; None while nothing is replaced."""
        return self._native.policy

    @property
    def leases(self) -> int:
        """The number of open leases."""
        return self._native.leases

    def replaced(self) -> dict[str, int]:
        """Return, for each module of torch, how many names refer to a stand-in now."""
        found: collections.Counter[str] = collections.Counter()
        for entry, patch in self._known.items():
            source = sys.modules.get(entry.module)
            found[entry.module] += vars(source).get(entry.name) is patch.stand_in if source else 0
        return {module: count for module, count in found.items() if count}

    def _prepare(self, policy: Policy) -> _native.Prepared:
        """Return the policy and the patches of a new lease, without applying them."""
        if policy not in ("raise", "torch"):
            raise ValueError(f'expected on_unsupported to be "raise" or "torch", got {policy!r}')
        if is_disabled():
            if not self._announced:
                self._announced = True
                log.info("FXPRESS_DISABLE is set: install() replaces nothing")
            return policy, [], [], []
        # The imports run without the lock, because a module may call install() when imported.
        loaded = self._load()
        with self._lock:
            found = [(entry, vars(source)[entry.name], ours) for entry, source, ours in loaded]
            patches = [self._concrete(*each) for each in found if each[1] is not each[2]]
        pairs = [(patch.original, patch.stand_in) for patch in patches]
        return policy, pairs, [*COMPATIBILITY_MARKS], _caches()

    def policy_here(self) -> Policy | None:
        """Return the policy for a stand-in's call in this thread; None: call torch's original."""
        return None if self._here.left else self.policy

    def left_to_torch(self) -> _native.Block:
        """Return a block in which stand-ins call torch's originals in this thread."""
        return attribute_block(self._here, "left", True)

    def _load(self) -> list[tuple[Entry, types.ModuleType, Any]]:
        """Import torch's and fxpress's object of each entry; skip unsupported components."""
        loaded = []
        refused: set[tuple[str, str]] = set()  # (torch's module, our module), to log each pair once
        for entry in self._components:
            component = (entry.module, entry.provider[0])
            if component in refused:
                continue
            try:
                # import_module, because the attribute torch.export.unflatten is a function.
                source = importlib.import_module(entry.module)
                if entry.name in vars(source):
                    provider, name = entry.provider
                    loaded.append((entry, source, getattr(importlib.import_module(provider), name)))
            except UnsupportedError as error:
                reason = str(error)
            except Exception as error:
                if not is_due_to_torch(error):
                    raise
                reason = f"torch {torch.__version__}: {error}"
            else:
                continue
            refused.add(component)
            log.info("%s is not replaced: %s", entry.module, reason)
        return loaded

    def _concrete(self, entry: Entry, original: Any, ours: Any) -> Patch:
        known = self._known.get(entry)
        if known and original is known.stand_in:  # other code has saved and restored the stand-in
            original = known.original
        if known and known.original is original and known.ours is ours:
            return known
        if isinstance(ours, type) and isinstance(original, type):
            stand_in: Any = class_stand_in(self, ours, original)
        else:
            stand_in = function_stand_in(self, entry, ours, original)
        self._known[entry] = patch = Patch(ours, original, stand_in)
        return patch


def _caches() -> list[Callable[[], object]]:
    """Return functions that clear Dynamo's caches of the classes in `fxpress.nn_module`."""
    tracking: Any = sys.modules.get("fxpress.nn_module")
    return [] if tracking is None else tracking.caches()
