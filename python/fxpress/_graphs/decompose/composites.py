"""Collect composite operators; split decomposition tables into composite and other operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fxpress._base.replacement import Replacement
from fxpress._torch import decompositions as compat
from fxpress._torch import origins


class _Composites:
    """Collects the composite operators of all namespaces. A registration causes a new collection.

    Attributes:
        late: composite operators of aten that were registered after torch collected aten's
            operators. torch collects them only once in a process.
    """

    def __init__(self) -> None:
        self._found: dict[str, list[Any]] = {}  # by namespace
        self.late: set[Any] = set()
        self._state: Any = None
        self._kernels: list[dict[Any, Any]] = []
        self._replaced = ""

    def get(self) -> dict[str, list[Any]]:
        """Return {namespace: composite operators that a user's table may keep or override}."""
        if self._state is None or self._state_now() != self._state:
            compat.load_composites()
            self._kernels.clear()
            self._replaced = ""
            for name, space in compat.namespaces():
                operators = list(compat.overloads(space))
                self._kernels += [operator.py_kernels for operator in operators]
                self._found[name] = [op for op in operators if compat.is_preservable(op)]
                if name in origins.BUILTIN:
                    self._replaced = self._replaced or _replaced(operators)
            once = compat.collected_aten_composites()
            self.late = {op for op in self._found["aten"] if op not in once}
            self._found["aten"] = list(once)
            self._state = self._state_now()
        return self._found

    def user_kernel(self) -> str:
        """Return the name of an operator of torch for which the user registered a kernel, or ''."""
        if self._state is None:
            self.get()
        return self._replaced or origins.user_kernel()

    def _state_now(self) -> Any:
        """Return a value that changes if an operator is registered or gets a Python kernel."""
        return (
            compat.registered_composites(),
            [(name, len(space._dir)) for name, space in compat.namespaces()],
            sum(map(len, self._kernels)),
        )


def _replaced(operators: list[Any]) -> str:
    """Return the name of the first operator with a Python kernel that is not torch's, or ''."""
    found = (op for op in operators if not all(map(origins.is_torchs, op.py_kernels.values())))
    return str(next(found, ""))


_COMPOSITES = _Composites()
user_kernel = _COMPOSITES.user_kernel


def _collect_all_valid_cia_ops() -> set[Any]:
    """Return the composite operators that a table of decompositions may keep or override.

    Stands in for `torch._export.utils._collect_all_valid_cia_ops`. The operators are collected
    again if operators were registered after the last call.
    """
    return {operator for found in _COMPOSITES.get().values() for operator in found}


# In `COLLECTING.block()`, torch's default table uses fxpress's collection of operators.
COLLECTING = Replacement(*compat.COLLECT_COMPOSITES, lambda _: _collect_all_valid_cia_ops())


def _collect_all_valid_cia_ops_for_aten_namespace() -> set[Any]:
    """Return the composite operators of aten that a decomposition table may keep or override.

    Stands in for `torch._export.utils._collect_all_valid_cia_ops_for_aten_namespace`.
    """
    return set(_COMPOSITES.get()["aten"])


def _split_decomp_table_to_cia_and_python_decomp(
    decomp_table: dict[Any, Callable[..., Any]],
) -> tuple[dict[Any, Callable[..., Any]], dict[Any, Callable[..., Any]]]:
    """Split a table into the decompositions of composite operators and of other operators.

    Args:
        decomp_table: operator -> decomposition. The composite operators that torch knows are
            removed from this dict. Keys that are not operators have no effect.

    Returns:
        A tuple: a dict from each composite operator to its decomposition, and `decomp_table`. If an
        operator was not in the table, the dict has a function that keeps the operator.

    Raises:
        AssertionError: an operator of aten became composite after torch collected the operators.

    Stands in for `torch.export.exported_program._split_decomp_table_to_cia_and_python_decomp`.
    """
    by_namespace = _COMPOSITES.get()
    late = _COMPOSITES.late
    kept = {operator for found in by_namespace.values() for operator in found}
    composites: dict[Any, Callable[..., Any]] = {}
    for operator in list(decomp_table):
        if operator in kept:
            composites[operator] = decomp_table.pop(operator)
            kept.discard(operator)
        elif operator in late or _is_unknown(operator, by_namespace):
            name = operator.name()
            if name.startswith("aten"):
                raise AssertionError(f"This should be a custom op, got aten op: {name}")
            composites[operator] = decomp_table[operator]
    composites.update(dict.fromkeys(kept, compat.keep))
    return composites, decomp_table


def _is_unknown(key: Any, by_namespace: dict[str, list[Any]]) -> bool:
    """Return whether `key` is a composite operator of a namespace that `by_namespace` lacks."""
    known = isinstance(key, compat.OpOverload) and key.namespace in by_namespace
    return not known and compat.is_preservable(key)
