"""Override composite operators for the time of a trace."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from fxpress._torch import decompositions as compat


class Overrides:
    """What composite operators become under a table, prepared once."""

    def __init__(self, composites: dict[Any, Any]) -> None:
        self._composites = composites
        self._prepared: list[tuple[Any, dict[Any, Any], Any]] | None = None
        self._before: list[dict[Any, Any]] = []

    def in_force(self) -> AbstractContextManager[None]:
        """Override the operators within the block, for the whole process."""
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

    Rules for fake tensors that an operator had before are in force again afterwards; torch drops
    them.

    Args:
        cia_ops_to_callable: composite operator -> the function that decomposes it.

    Stands in for `torch.export.exported_program._override_composite_implicit_decomp`.
    """
    return Overrides(cia_ops_to_callable).in_force()
