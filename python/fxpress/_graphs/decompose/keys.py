"""Compute the key of a call; traces of calls with equal keys add the same nodes."""

from __future__ import annotations

from typing import Any

from torch.fx import Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxpress._graphs.decompose.values import Number, Storage, UnsafeError, Value
from fxpress._graphs.trace.proxy_calls import PLAIN_TYPES
from fxpress._torch import decompose as compat

_LISTS = (list, immutable_list)
_DICTS = (dict, immutable_dict)


class Call:
    """The arguments of an operator call: Values (tensors), Numbers (symbolic ones) and constants.

    Attributes:
        values: the distinct Values among the arguments, in order of appearance.
        numbers: the distinct Numbers among the arguments.
        storages: the distinct storages of `values`.
    """

    def __init__(self, node: Node, environment: dict[Node, Any]) -> None:
        self._node = node
        self._environment = environment
        self._numbers: dict[int, int] = {}
        self._storages: dict[Storage, int] = {}
        self._key: list[Any] = []
        self.values: list[Value] = []
        self.numbers: list[Number] = []
        self.storages: list[Storage] = []
        for argument in node.args:
            self._add(argument)
        for name, argument in node.kwargs.items():
            self._key.append(name)
            self._add(argument)

    def key(self, fields: tuple[str, ...]) -> tuple[Any, ...]:
        """Return the call's key; `fields` are the keys of meta that torch copies to new nodes."""
        return (self._node.target, fields, len(self._node.args), *self._key)

    def _add(self, argument: Any) -> None:
        value = self._environment[argument] if type(argument) is Node else argument
        kind = type(value)
        if kind is Value:
            self._add_tensor(value)
        elif kind is Number:
            self._add_number(value)
        elif kind is tuple or kind in _LISTS:
            self._key.append((kind is tuple, len(value)))
            for item in value:
                self._add(item)
        elif kind in PLAIN_TYPES:
            self._key.append(kind)
            self._key.append(value)
        elif kind is float or kind is complex:
            self._key.append(repr(value))  # -0.0 differs from 0.0, and nan equals nan
        elif kind in _DICTS:
            self._key.append(("dict", len(value)))
            for name, item in value.items():
                self._key.append(name)
                self._add(item)
        elif kind is slice:
            self._key.append("slice")
            for item in (value.start, value.stop, value.step):
                self._add(item)
        else:
            raise UnsafeError(f"an argument of a call is of type {kind.__name__}")

    def _add_tensor(self, value: Value) -> None:
        number = self._numbers.get(value.node)
        if number is None:
            number = self._numbers[value.node] = len(self.values)
            self.values.append(value)
            storage = self._storages.get(value.storage)
            if storage is None:
                storage = self._storages[value.storage] = len(self.storages)
                self.storages.append(value.storage)
                self._key.append(value.storage.nbytes)
            self._key.append(storage)
        self._key.append(("t", number, value.facts))

    def _add_number(self, number: Number) -> None:
        if number not in self.numbers:
            self.numbers.append(number)
        self._key.append(("n", self.numbers.index(number), number.kind, number.expression))

    def number_of(self, value: Value) -> int:
        """Return the index in `values` of the Value that has the same node as `value`."""
        return self._numbers[value.node]


def map_values(argument: Any, environment: dict[Node, Any], function: Any) -> Any:
    """Copy a call's argument, with `function(value)` in place of each Value and Number."""
    if type(argument) is Node:
        argument = environment[argument]
    kind = type(argument)
    if kind is Value or kind is Number:
        return function(argument)
    if kind is tuple:
        return tuple([map_values(item, environment, function) for item in argument])
    if kind in _LISTS:
        return [map_values(item, environment, function) for item in argument]
    if kind in _DICTS:
        return {name: map_values(item, environment, function) for name, item in argument.items()}
    if kind is slice:
        parts = [argument.start, argument.stop, argument.step]
        return slice(*[map_values(part, environment, function) for part in parts])
    return argument


# Items of a node's meta that are plain data, and that torch copies to new nodes in a trace.
_COPIED = tuple(
    field
    for field in compat.COPIED_META
    if field not in ("recompute", "ac_graph_id", "has_backward_hook", "partitioner_tag")
    and field != "from_node"  # provenance, created for each node
)
_REFUSED = frozenset(
    field for field in compat.COPIED_META if field not in (*_COPIED, "from_node")
) | {"autograd_backward", "unbacked_bindings", "in_grad_fn", "is_gradient_acc"}
_FIELDS = ("stack_trace", *_COPIED)


def fields_of(meta: dict[str, Any], *, annotated: bool = False) -> tuple[str, ...]:
    """Return the keys of a call node's meta that torch copies to the nodes of the call's trace.

    Raises UnsafeError if the trace depends on other items of meta, or if the node has annotations
    of the user and `annotated` is False.
    """
    if not _REFUSED.isdisjoint(meta):
        refused = sorted(_REFUSED & meta.keys())
        raise UnsafeError(f"the meta of a node has the key {refused[0]!r}")
    if meta.get("custom") and not annotated:
        raise UnsafeError("the user has annotated a node")
    stack = meta.get("stack_trace")
    if stack is not None and (type(stack) is not str or compat.ACCUMULATION in stack):
        raise UnsafeError("a stack trace is not a str, or marks accumulated gradients")
    return tuple([f for f in _FIELDS if f in meta and (stack or f != "stack_trace")])
