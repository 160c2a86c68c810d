"""What calls that are still to come are given, by the old program: most are given that indeed."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from fxpress._graphs.decompose.values import (
    Facts,
    Storage,
    UnsafeError,
    Value,
    facts_of,
    shared,
    size_of,
)
from fxpress._torch import decompose as compat


class Ahead:
    """The values of the old program, as those of the new one."""

    def __init__(self, environment: dict[Node, Any], shape_env: Any) -> None:
        self._known = environment
        self._shape_env = shape_env
        self._made: dict[Node, Value] = {}
        self._storages: dict[int, Storage] = {}

    def inputs_of(self, node: Node) -> dict[Node, Any] | None:
        """Return the inputs of a call -> their values; None unless all are plain tensors."""
        try:
            return {used: self._value(used) for used in node.all_input_nodes}
        except UnsafeError:
            return None

    def _value(self, node: Node) -> Any:
        found = self._known.get(node) or self._made.get(node)
        if found is None:
            found = self._made[node] = self._of(node.meta.get("val"))
        if not isinstance(found, Value):
            raise UnsafeError("no plain tensor")
        return found

    def _of(self, old: Any) -> Value:
        if type(old) is not compat.FakeTensor:
            raise UnsafeError("no plain tensor")
        facts: Facts = facts_of(old, self._shape_env, False)
        storage = old.untyped_storage()
        place = self._storages.get(storage._cdata)
        if place is None:
            place = Storage(size_of(storage.nbytes(), self._shape_env))
            self._storages[storage._cdata] = place
        # No node of the new trace has such a number.
        return Value(-1 - len(self._made), shared(facts._replace(requires_grad=False)), place)
