"""The key of a call: traces of calls with equal keys add the same nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from fxpress._graphs.decompose.values import Number, Storage, UnsafeError, Value
from fxpress._torch import decompose as compat

_PLAIN = (int, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
PLAIN_TYPES = frozenset(_PLAIN)
_LISTS = (list, immutable_list)
_DICTS = (dict, immutable_dict)


class Call:
    """A call of an operator, with Values and Numbers instead of nodes in its arguments.

    Attributes:
        key: the arguments' part of the key, in order.
        values: the distinct Values among the arguments, in the order of their numbers.
        numbers: the distinct Numbers among them.
        storages: the distinct storages of the values.
    """

    __slots__ = ("_environment", "_numbers", "_places", "key", "numbers", "storages", "values")

    def __init__(self, environment: dict[Node, Any]) -> None:
        self._environment = environment
        self._numbers: dict[int, int] = {}
        self._places: dict[Storage, int] = {}
        self.key: list[Any] = []
        self.values: list[Value] = []
        self.numbers: list[Number] = []
        self.storages: list[Storage] = []

    def add(self, argument: Any) -> None:
        """Add an argument to the key."""
        kind = type(argument)
        if kind is Node:
            self.add_value(self._environment[argument])
        elif kind is tuple or kind in _LISTS:
            self.key.append((kind is tuple, len(argument)))
            for item in argument:
                self.add(item)
        else:
            self.add_value(argument)

    def add_value(self, value: Any) -> None:
        """Add the value of a node, or a constant, to the key."""
        kind = type(value)
        if kind is Value:
            self._add_tensor(value)
        elif kind is Number:
            self._add_number(value)
        elif kind in PLAIN_TYPES:
            self.key.append(kind)
            self.key.append(value)
        elif kind is float or kind is complex:
            self.key.append(repr(value))  # distinguishes -0.0 from 0.0, and equals itself for nan
        elif kind is tuple or kind in _LISTS:
            self.key.append((kind is tuple, len(value)))
            for item in value:
                self.add(item)
        elif kind in _DICTS:
            self.key.append(("dict", len(value)))
            for name, item in value.items():
                self.key.append(name)
                self.add(item)
        elif kind is slice:
            self.key.append("slice")
            for item in (value.start, value.stop, value.step):
                self.add(item)
        else:
            raise UnsafeError(f"an argument of type {kind.__name__}")

    def _add_tensor(self, value: Value) -> None:
        number = self._numbers.get(value.node)
        if number is None:
            number = self._numbers[value.node] = len(self.values)
            self.values.append(value)
            place = self._places.get(value.storage)
            if place is None:
                place = self._places[value.storage] = len(self.storages)
                self.storages.append(value.storage)
                self.key.append(value.storage.nbytes)
            self.key.append(place)
        self.key.append(("t", number, value.facts))

    def _add_number(self, number: Number) -> None:
        if number not in self.numbers:
            self.numbers.append(number)
        self.key.append(("n", self.numbers.index(number), number.kind, number.expression))

    def number_of(self, value: Value) -> int:
        """Return the number of a value's node among the arguments."""
        return self._numbers[value.node]


def mapped(argument: Any, environment: dict[Node, Any], made: Any) -> Any:
    """Return an argument with each Value and Number replaced by `made(value)`.

    Containers are new.
    """
    if type(argument) is Node:
        argument = environment[argument]
    kind = type(argument)
    if kind is Value or kind is Number:
        return made(argument)
    if kind is tuple:
        return tuple([mapped(item, environment, made) for item in argument])
    if kind in _LISTS:
        return [mapped(item, environment, made) for item in argument]
    if kind in _DICTS:
        return {name: mapped(item, environment, made) for name, item in argument.items()}
    if kind is slice:
        parts = (argument.start, argument.stop, argument.step)
        return slice(*(mapped(part, environment, made) for part in parts))
    return argument


# Items of a node's meta that are plain data and that torch copies to the nodes of its trace.
_COPIED = tuple(
    field
    for field in compat.COPIED_META
    if field not in ("recompute", "ac_graph_id", "has_backward_hook", "partitioner_tag")
    and field != "from_node"  # each node gets a separate record
)
_REFUSED = frozenset(
    field for field in compat.COPIED_META if field not in (*_COPIED, "from_node")
) | {"autograd_backward", "unbacked_bindings", "in_grad_fn", "is_gradient_acc"}
_FIELDS = ("stack_trace", *_COPIED)


def fields_of(meta: dict[str, Any], *, annotated: bool = False) -> tuple[str, ...]:
    """Return the items of a node's meta that its trace copies to new nodes."""
    if not _REFUSED.isdisjoint(meta):
        refused = sorted(_REFUSED & meta.keys())
        raise UnsafeError(f"a node with {refused[0]!r} in its meta")
    if meta.get("custom") and not annotated:
        raise UnsafeError("a node with the user's annotations")
    stack = meta.get("stack_trace")
    if stack is not None and (type(stack) is not str or compat.ACCUMULATION in stack):
        raise UnsafeError("a stack trace of gradients")
    return tuple([f for f in _FIELDS if f in meta and (stack or f != "stack_trace")])
