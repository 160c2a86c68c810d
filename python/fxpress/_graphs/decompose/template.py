"""What tracing one call adds to a graph, in terms that hold for each call with the same key."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._graphs.decompose.values import ByIdentity, Facts

# How a node gets an item of its meta: `MetaKind` in csrc/decompose/recipe.h.
COPIED = "copied"  # a shallow copy of the item of the node that was called
LITERAL = "literal"  # the recorded value
COPIED_LITERAL = "copied literal"  # a shallow copy of the recorded value
STACK = "stack"  # the stack trace of the node that was called, itself
SOURCE = "source"  # a list with the record of the node that was called
VALUE = "value"  # the node's value, made anew
SEQUENCE = "sequence"  # the number that torch gives nodes
COUNTED = "counted"  # name and type of the last function called, with the count of its calls


class TensorSpec(NamedTuple):
    """A tensor in a node's value. Storages: the inputs' first, then the template's own."""

    facts: Facts
    storage: int
    is_whole: bool  # whether a new tensor of these sizes has a storage of its size
    pattern: torch.Tensor | None = None  # one of these sizes, where they are symbolic and known


class NumberSpec(NamedTuple):
    """The value of a node that computes a number."""

    expression: Any
    kind: type


class TemplateNode(NamedTuple):
    """A node of a template. Values are numbered: -1, -2… the inputs, 0, 1… the nodes.

    A number is what programs with symbols compute sizes by. All that need it share the first node
    of the program that computes it. A node that only needs it is written nowhere.
    """

    target: Any
    original: Node | None  # the node of the recorded trace, which has the arguments
    uses: tuple[int, ...]  # the values that it takes
    candidate: str  # what its name is made from
    is_impure: bool  # whether it stays though nobody uses it
    meta: tuple[tuple[str, str, Any], ...]  # key, how, value
    value: Any  # TensorSpec, NumberSpec, a list or tuple of such, or a constant
    number: Any = None  # the expression of a number; None: the node is no number
    is_needed: bool = False  # whether it stands for a number that another node computes
    read: int | None = None  # the tensor whose size it is, if the trace read it there
    parts: int = 0  # how many nodes before it compute the number unless one did so before


class Output(NamedTuple):
    """A tensor that the call returns."""

    value: int
    facts: Facts
    storage: int


class NumberOutput(NamedTuple):
    """A number that the call returns."""

    expression: Any
    kind: type
    value: int | None  # None: torch makes a node when something needs it


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
        nodes: the nodes that it adds, dead ones included, but no dead numbers.
        numbers: node of the recorded trace -> its number.
        fresh: sizes of the storages that are not those of inputs, in bytes.
        result: what it returns: containers and constants with Outputs and NumberOutputs.
        calls: function -> how many times it was called.
        is_symbolic: whether it mentions expressions, which `symbols.bound` makes numbers of.
        is_from_cache: whether it has tensors that lie elsewhere when they are computed.
        moves: whether what the call returns has another offset, or a storage of another size, when
            it is computed.
    """

    __slots__ = ()


def specs_in(value: Any) -> list[TensorSpec]:
    """Return the tensors in the value of a node."""
    if type(value) is TensorSpec:
        return [value]
    if isinstance(value, (list, tuple)):
        return [spec for item in value for spec in specs_in(item)]
    return []
