"""torch's sets of composite operators, and the division of a table by them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxpress._torch import decompositions as compat


class _Composites:
    """torch's composite operators, which are collected again when one was registered."""

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}  # by namespace
        self._state: Any = None
        self._kernels: list[dict[Any, Any]] = []

    def get(self) -> dict[str, list[Any]]:
        """Return namespace -> its composite operators that a table may keep or override."""
        if self._state is None or self._state_now() != self._state:
            compat.load_composites()
            self._kernels.clear()
            for name, space in compat.namespaces():
                operators = list(compat.overloads(space))
                self._kernels += [operator.py_kernels for operator in operators]
                self._found[name] = [op for op in operators if compat.is_preservable(op)]
            self._state = self._state_now()
        return self._found

    def _state_now(self) -> Any:
        """Return what changes when an operator is registered, or gets a Python kernel."""
        return (
            compat.registered_composites(),
            [(name, len(space._dir)) for name, space in compat.namespaces()],
            sum(map(len, self._kernels)),
        )


_COMPOSITES = _Composites()


def _collect_all_valid_cia_ops() -> set[Any]:
    """Return the composite operators that a table of decompositions may keep or override.

    Stands in for `torch._export.utils._collect_all_valid_cia_ops`; the operators are looked at
    again when some were registered since.
    """
    return {operator for found in _COMPOSITES.get().values() for operator in found}


def _collect_all_valid_cia_ops_for_aten_namespace() -> set[Any]:
    """Return those of the namespace aten.

    Stands in for `torch._export.utils._collect_all_valid_cia_ops_for_aten_namespace`.
    """
    return set(_COMPOSITES.get()["aten"])


def _split_decomp_table_to_cia_and_python_decomp(
    decomp_table: dict[Any, Callable[..., Any]],
) -> tuple[dict[Any, Callable[..., Any]], dict[Any, Callable[..., Any]]]:
    """Divide a table into composite operators and others.

    Composite operators that the table does not name are kept as they are.

    Args:
        decomp_table: operator -> decomposition; composite operators of torch's are removed.

    Returns:
        Composite operators with what to do with them, and `decomp_table`.

    Stands in for `torch.export.exported_program._split_decomp_table_to_cia_and_python_decomp`.
    """
    by_namespace = _COMPOSITES.get()
    kept = {operator for found in by_namespace.values() for operator in found}
    composites: dict[Any, Callable[..., Any]] = {}
    for operator in list(decomp_table):
        if operator in kept:
            composites[operator] = decomp_table.pop(operator)
            kept.discard(operator)
        elif operator.namespace not in by_namespace and compat.is_preservable(operator):
            composites[operator] = decomp_table[operator]
    composites.update(dict.fromkeys(kept, compat.keep))
    return composites, decomp_table
