"""Tables of decompositions, with the state that is prepared once for each table."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

from fxpress._graphs.decompose.names import KnownNames
from fxpress._graphs.decompose.template import Template
from fxpress._graphs.decompose.values import UnsafeError
from fxpress._torch import decompositions as compat
from fxpress._torch.origins import is_torchs


class Overrides:
    """The kernels of composite operators under a table, prepared once."""

    def __init__(self, composites: dict[Any, Any]) -> None:
        self._composites = composites
        self._prepared: list[tuple[Any, dict[Any, Any], Any]] | None = None
        self._before: list[dict[Any, Any]] = []

    def in_force(self) -> AbstractContextManager[None]:
        """Override the operators within the block, in the entire process."""
        if self._prepared is None or self._before != [op.py_kernels for op in self._composites]:
            self._before = [dict(operator.py_kernels) for operator in self._composites]
            self._prepared = []
            for operator, function in self._composites.items():
                kernels, original = compat.overridden(operator, function)
                self._prepared.append((operator, kernels, compat.fake_rule(original)))
        return compat.kernels_replaced(self._prepared)


def _override_composite_implicit_decomp(
    cia_ops_to_callable: dict[Any, Any],
) -> AbstractContextManager[None]:
    """Decompose composite operators by other functions within the block.

    Afterwards an operator has its former rules for fake tensors again; torch drops them.

    Args:
        cia_ops_to_callable: composite operator -> the function that decomposes it.

    Stands in for `torch.export.exported_program._override_composite_implicit_decomp`.
    """
    return Overrides(cia_ops_to_callable).in_force()


_MOST_TABLES = 8  # tables whose templates are kept
_MOST_TRAITS = 64  # traits for which a table keeps templates


class Table:
    """A table of decompositions, with its templates.

    Attributes:
        others: the argument, with the user's functions replaced by functions that raise.
        templates: traits of a fake mode and its symbols -> key of a call -> its template, or the
            reason why there is none.
        refused: the operators whose functions are the user's.
        is_torchs: whether all functions are torch's.
        names: the names in decomposed programs with symbolic sizes.
        plain, guarded: override the composite operators; `guarded` raises for the user's functions.
    """

    def __init__(self, composites: dict[Any, Any], others: dict[Any, Any]) -> None:
        self.others = {op: _guarded(op, f) for op, f in others.items()}
        self.templates: dict[Any, dict[Any, Template | str]] = {}
        self.plain = Overrides(composites)
        refusing = {op: _guarded(op, f) for op, f in composites.items()}
        self.guarded = Overrides(refusing)
        self.refused = {
            op
            for mine, given in ((self.others, others), (refusing, composites))
            for op, f in given.items()
            if mine[op] is not f
        }
        self.is_torchs = not self.refused
        self.names = KnownNames()

    def templates_of(self, traits: Any) -> dict[Any, Template | str]:
        """Return the templates for fake modes with these traits; drop the oldest traits."""
        found = self.templates.setdefault(traits, {})
        while len(self.templates) > _MOST_TRAITS:
            self.templates.pop(next(iter(self.templates)))
        return found


def _guarded(operator: Any, function: Any) -> Any:
    """Return a decomposition of torch itself; for one of the user, a function that raises.

    A function of the user may have state, so it must be called as often as torch calls it.
    """
    if compat.is_own_decomposition(function, operator) or is_torchs(function):
        return function

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsafeError(f"{operator}: its decomposition is a function of the user's")

    return refuse


class Tables:
    """The tables that were used last."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, Table]] = []
        self._lock = threading.Lock()

    def get(
        self, composites: dict[Any, Any], others: dict[Any, Any], surroundings: tuple[Any, ...]
    ) -> Table:
        """Return the Table of these decompositions."""
        canonical = {
            op: None if compat.is_own_decomposition(f, op) else f for op, f in composites.items()
        }
        key = (canonical, others, surroundings)
        with self._lock:
            found = (entry for entry in self._known if _is_same(entry[0], key))
            entry = next(found, None)
            if entry is None:
                entry = ((canonical, dict(others), surroundings), Table(composites, dict(others)))
            else:
                self._known.remove(entry)
            self._known.insert(0, entry)
            del self._known[_MOST_TABLES:]
        return entry[1]

    def forget_templates(self) -> None:
        """Forget all templates."""
        with self._lock:
            for _, table in self._known:
                table.templates.clear()
                table.names.forget()


def _is_same(known: Any, key: Any) -> bool:
    """Return whether two keys have identical functions and equal surroundings."""
    if known[2] != key[2]:
        return False
    return all(
        mine.keys() == other.keys() and all(f is other[op] for op, f in mine.items())
        for mine, other in zip(known[:2], key[:2], strict=True)
    )


TABLES = Tables()
