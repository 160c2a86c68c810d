"""Store, for each decomposition table, its templates and the kernels that override operators."""

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
    """Replaces the kernels of composite operators by the decompositions of a table."""

    def __init__(self, composites: dict[Any, Any]) -> None:
        self._composites = composites
        self._prepared: list[tuple[Any, dict[Any, Any], Any]] | None = None
        self._before: list[dict[Any, Any]] = []

    def in_force(self) -> AbstractContextManager[None]:
        """Return a block in which the table's functions override the operators in all threads."""
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
    """Return a block in which the functions in `cia_ops_to_callable` decompose composite operators.

    After the block, operators have their old fake tensor implementations. torch removes these.

    Args:
        cia_ops_to_callable: composite operator -> the function that decomposes it.

    Stands in for `torch.export.exported_program._override_composite_implicit_decomp`.
    """
    return Overrides(cia_ops_to_callable).in_force()


_MOST_TABLES = 8  # how many Tables, with their templates, are kept
_MOST_TRAITS = 64  # the maximum length of `Table.templates`


class Table:
    """A decomposition table, with its templates.

    Attributes:
        others: operator that is not composite -> its decomposition. Functions of the user are
            replaced by functions that raise UnsafeError.
        templates: traits of a fake mode and its symbols -> {key of a call: the call's template, or
            the reason why the call has none}.
        refused: the operators whose decompositions are functions of the user.
        names: the node names of decomposed programs with symbolic sizes.
        plain: overrides composite operators by the table's functions.
        guarded: like `plain`, but functions of the user are replaced as in `others`.
    """

    def __init__(self, composites: dict[Any, Any], others: dict[Any, Any]) -> None:
        self.others = {op: _guarded(op, f) for op, f in others.items()}
        self.templates: dict[Any, dict[Any, Template | str]] = {}
        self.plain = Overrides(composites)
        refusing = {op: _guarded(op, f) for op, f in composites.items()}
        self.guarded = Overrides(refusing)
        self.refused = {
            op
            for guarded, table in ((self.others, others), (refusing, composites))
            for op, f in table.items()
            if guarded[op] is not f
        }
        self.names = KnownNames()

    def templates_of(self, traits: Any) -> dict[Any, Template | str]:
        """Return the item of `templates` for `traits`, perhaps a new one; drop the oldest items."""
        found = self.templates.setdefault(traits, {})
        while len(self.templates) > _MOST_TRAITS:
            self.templates.pop(next(iter(self.templates)))
        return found


def _guarded(operator: Any, function: Any) -> Any:
    """Return `function` if it is torch's; otherwise, a function that raises UnsafeError.

    A function of the user may have state, so fxpress must call it as often as torch does. Only a
    full trace does that.
    """
    if compat.is_own_decomposition(function, operator) or is_torchs(function):
        return function

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsafeError(f"the decomposition of {operator} is the user's function")

    return refuse


class Tables:
    """The `Table` objects of the most recently used decomposition tables."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, Table]] = []
        self._lock = threading.Lock()

    def get(
        self, composites: dict[Any, Any], others: dict[Any, Any], surroundings: tuple[Any, ...]
    ) -> Table:
        """Return the Table for these functions, and for the settings of torch in `surroundings`."""
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
        """Free all templates, and the node names that programs share."""
        with self._lock:
            for _, table in self._known:
                table.templates.clear()
                table.names.forget()


def _is_same(known: Any, key: Any) -> bool:
    """Return whether two keys of Tables have the same function objects and equal surroundings."""
    if known[2] != key[2]:
        return False
    return all(
        old.keys() == new.keys() and all(f is new[op] for op, f in old.items())
        for old, new in zip(known[:2], key[:2], strict=True)
    )


TABLES = Tables()
