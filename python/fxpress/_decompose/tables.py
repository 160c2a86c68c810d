"""Tables of decompositions: what is made of each table once, and torch's sets of composites."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from fxpress._decompose.template import Template
from fxpress._decompose.values import Unsafe
from fxpress._torch import decompositions as compat

_MOST_TABLES = 8  # whose templates are kept


class Table:
    """A table of decompositions, with the templates that calls under it had so far.

    Args:
        composites: composite operator -> the function that decomposes it.
        others: other operator -> its decomposition.

    Attributes:
        others: the argument, with a function that refuses in place of each of the user's.
        templates: key of a call -> its template, or why there is none.
    """

    def __init__(self, composites: dict[Any, Any], others: dict[Any, Any]) -> None:
        self._composites = composites
        self.others = {op: _guarded(op, f) for op, f in others.items()}
        self.templates: dict[Any, Template | str] = {}
        self._kernels: list[tuple[Any, dict[Any, Any], Any]] | None = None
        self._before: list[dict[Any, Any]] = []

    def in_force(self) -> contextlib.AbstractContextManager[None]:
        """Override the composite operators within the block, for the whole process."""
        before = [op.py_kernels for op in self._composites]
        if self._kernels is None or before != self._before:
            self._before = [dict(kernels) for kernels in before]
            self._kernels = []
            for operator, function in self._composites.items():
                kernels, original = compat.overridden(operator, _guarded(operator, function))
                self._kernels.append((operator, kernels, compat.fake_rule(original)))
        return compat.kernels_replaced(self._kernels)


def _guarded(operator: Any, function: Any) -> Any:
    """Return a decomposition of torch's, or a function that refuses in place of the user's.

    A function of the user may have state: it has to be called as often as torch calls it.
    """
    if compat.is_own_decomposition(function, operator):
        return function
    inner = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    module = getattr(inner, "__module__", None) or ""
    if module == "torch" or module.startswith("torch."):
        return function

    def refuse(*_: Any, **__: Any) -> Any:
        raise Unsafe(f"{operator}: its decomposition is a function of the user's")

    return refuse


class Tables:
    """The tables that were used last."""

    def __init__(self) -> None:
        self._known: list[tuple[Any, Table]] = []

    def get(
        self, composites: dict[Any, Any], others: dict[Any, Any], surroundings: tuple[Any, ...]
    ) -> Table:
        """Return what is known of a table.

        Args:
            composites, others: as for `Table`.
            surroundings: what else a trace may depend on.
        """
        canonical = {
            op: None if compat.is_own_decomposition(f, op) else f for op, f in composites.items()
        }
        key = (canonical, others, surroundings)
        for place, (known, table) in enumerate(self._known):
            if _is_same(known, key):
                self._known.insert(0, self._known.pop(place))
                return table
        table = Table(composites, dict(others))
        self._known.insert(0, (key, table))
        del self._known[_MOST_TABLES:]
        return table

    def clear(self) -> None:
        """Forget all tables, with their templates."""
        self._known.clear()


def _is_same(known: Any, key: Any) -> bool:
    """Whether two keys have the same functions by identity, and equal surroundings."""
    if known[2] != key[2]:
        return False
    return all(
        mine.keys() == other.keys() and all(f is other[op] for op, f in mine.items())
        for mine, other in zip(known[:2], key[:2], strict=True)
    )


TABLES = Tables()


class _Composites:
    """torch's set of composite operators, which is collected again when one was registered."""

    def __init__(self, collect: Callable[[], set[Any]]) -> None:
        self._collect = collect
        self._found: set[Any] = set()
        self._state: Any = None
        self._kernels: list[dict[Any, Any]] = []

    def get(self) -> set[Any]:
        """Return a set that belongs to the caller."""
        state = self._state_now()
        if state != self._state:
            self._found = self._collect()
            self._kernels = _python_kernels()
            self._state = self._state_now()
        return set(self._found)

    def _state_now(self) -> Any:
        return (
            compat.registered_composites(),
            [(name, len(space._dir)) for name, space in compat.namespaces()],
            sum(compat.COMPOSITE in kernels for kernels in self._kernels),
        )


def _python_kernels() -> list[dict[Any, Any]]:
    """Return the Python kernels of every operator that was used so far."""
    found = []
    for _, space in compat.namespaces():
        for name in space._dir:
            packet = getattr(space, name)
            for overload in getattr(packet, "overloads", list)():
                found.append(getattr(packet, overload).py_kernels)
    return found


_ALL = _Composites(compat.all_composites)
_OF_ATEN = _Composites(compat.composites_of_aten)


def collect_all_valid_cia_ops() -> set[Any]:
    """Return the composite operators that a table of decompositions may keep or override.

    Stands in for `torch._export.utils._collect_all_valid_cia_ops`; the operators are looked at
    again when some were registered since.
    """
    return _ALL.get()


def collect_all_valid_cia_ops_for_aten_namespace() -> set[Any]:
    """Return those of the namespace aten.

    Stands in for `torch._export.utils._collect_all_valid_cia_ops_for_aten_namespace`.
    """
    return _OF_ATEN.get()


def split_decomp_table_to_cia_and_python_decomp(
    decomp_table: dict[Any, Callable[..., Any]],
) -> tuple[dict[Any, Callable[..., Any]], dict[Any, Callable[..., Any]]]:
    """Divide a table into composite operators and others.

    Composite operators that the table does not name are kept as they are.

    Args:
        decomp_table: operator -> decomposition; composite operators of torch's are removed.

    Returns:
        Composite operators with what to do with them, and `decomp_table`.

    Raises:
        AssertionError: the table has an operator of aten that torch registered since.

    Stands in for `torch.export.exported_program._split_decomp_table_to_cia_and_python_decomp`.
    """
    kept = collect_all_valid_cia_ops()
    composites: dict[Any, Callable[..., Any]] = {}
    for operator in list(decomp_table):
        if operator in kept:
            composites[operator] = decomp_table.pop(operator)
            kept.discard(operator)
        elif compat.is_preservable(operator):
            if operator.name().startswith("aten"):
                raise AssertionError(
                    f"This should be a custom op, got aten op: {operator.name()}"
                )
            composites[operator] = decomp_table[operator]
    composites.update(dict.fromkeys(kept, compat.keep))
    return composites, decomp_table
