"""Templates: the nodes that a call adds to a graph, the same for all calls with its key."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._graphs.decompose.values import ByIdentity, Facts

# How a node gets an item of its meta: `MetaKind` in csrc/decompose/recipe.h.
COPIED = "copied"  # a shallow copy of the call node's item
LITERAL = "literal"  # the recorded value
COPIED_LITERAL = "copied literal"  # a shallow copy of the recorded value
STACK = "stack"  # the call node's stack trace, not copied
SOURCE = "source"  # a list with the provenance record of the call node
VALUE = "value"  # the node's value, created for it
SEQUENCE = "sequence"  # torch's sequence number
COUNTED = "counted"  # name and type of the last function called, with the count of its calls


class TensorSpec(NamedTuple):
    """A tensor in a node's value. Storages: the inputs' first, then the template's own."""

    facts: Facts
    storage: int
    is_whole: bool  # whether a new tensor of these sizes fills a storage of that size
    pattern: torch.Tensor | None = None  # a tensor of these sizes, if they are bound SymInts


class NumberSpec(NamedTuple):
    """The value of a node that computes a number."""

    expression: Any
    kind: type


class TemplateNode(NamedTuple):
    """A node of a template. Values are numbered: -1, -2… the inputs, 0, 1… the nodes.

    Programs with symbols compute sizes by nodes that are numbers. All users of a number share the
    first node of the program that computes it. A node that is only needed is not written.
    """

    target: Any
    original: Node | None  # the node of the recorded trace, which has the arguments
    uses: tuple[int, ...]  # the values that it uses
    candidate: str  # the name that its name is derived from
    is_impure: bool  # whether it stays without users
    meta: tuple[tuple[str, str, Any], ...]  # key, how, value
    value: Any  # TensorSpec, NumberSpec, a list or tuple of such, or a constant
    number: Any = None  # the expression of a number; None: the node is not a number
    is_needed: bool = False  # whether it refers to a number that another node computes
    read: int | None = None  # the tensor whose size it is, if the trace read it from one
    parts: int = 0  # how many nodes before it compute the number if no earlier node does


class Output(NamedTuple):
    """A tensor that the call returns."""

    value: int
    facts: Facts
    storage: int


class NumberOutput(NamedTuple):
    """A number that the call returns."""

    expression: Any
    kind: type
    value: int | None  # None: torch creates a node when one is needed


class _Template(NamedTuple):
    nodes: tuple[TemplateNode, ...]
    numbers: dict[Any, int]
    fresh: tuple[int, ...]
    result: Any
    calls: tuple[tuple[Any, int], ...]
    is_symbolic: bool
    is_from_cache: bool = False
    moves: bool = False


class Template(ByIdentity, _Template):
    """The trace of a call.

    Attributes:
        nodes: the nodes that it adds, including dead nodes, but not dead numbers.
        numbers: node of the recorded trace -> its number.
        fresh: sizes in bytes of the storages that the call creates.
        result: the call's result: containers and constants with Outputs and NumberOutputs.
        calls: function -> how many times it was called.
        is_symbolic: whether it contains expressions, which `Symbols.bound` replaces.
        is_from_cache: whether the trace depends on torch's cache of fake tensors: tensors from the
            cache share other storages than computed tensors do.
        moves: whether a result from the cache has another offset or size of storage, too.
    """

    __slots__ = ()


def specs_in(value: Any) -> list[TensorSpec]:
    """Return the tensors in the value of a node."""
    if type(value) is TensorSpec:
        return [value]
    if isinstance(value, (list, tuple)):
        return [spec for item in value for spec in specs_in(item)]
    return []
