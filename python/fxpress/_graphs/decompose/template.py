"""Define templates. A template has the nodes that each of several equal calls adds to a graph."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from fxpress._graphs.decompose.values import ByIdentity, Facts

# How a node of an instance gets an item of its meta: `MetaKind` in csrc/decompose/recipe.h. "The
# call" is the call in the old program for which the template is instantiated.
COPIED = "copied"  # a shallow copy of the item of the call's meta
LITERAL = "literal"  # the value in `TemplateNode.meta`
COPIED_LITERAL = "copied literal"  # a shallow copy of the value in `TemplateNode.meta`
STACK = "stack"  # the call's stack trace, not copied
SOURCE = "source"  # a list with the provenance record of the call
VALUE = "value"  # the node's fake tensor or number, created from `TemplateNode.value`
SEQUENCE = "sequence"  # the next sequence number that torch would give
COUNTED = "counted"  # `torch_fn`: the last called torch function, with the count of its calls


class TensorSpec(NamedTuple):
    """A tensor in a node's value."""

    facts: Facts
    storage: int  # its number; storages of inputs precede storages in `Template.fresh`
    is_whole: bool  # whether `torch.empty_strided` of these sizes would create the same storage
    pattern: torch.Tensor | None = None  # a tensor with these sizes, if `Symbols.bound` set it


class NumberSpec(NamedTuple):
    """The value of a node that computes a number."""

    expression: Any
    kind: type


class TemplateNode(NamedTuple):
    """A node of a template. Values are numbered: -1, -2, … are inputs; 0, 1, … are nodes.

    With symbolic sizes, some nodes compute numbers. All users of a number share the first node that
    computes it. A node with `is_needed` refers to this first node, and is not written.
    """

    target: Any
    original: Node | None  # the node of the recorded trace, which has the arguments
    uses: tuple[int, ...]  # the numbers of the values that the node uses
    candidate: str  # the name that torch proposed for the node
    is_impure: bool  # whether the program keeps the node if it has no users
    meta: tuple[tuple[str, str, Any], ...]  # (key, how, value); how: COPIED, LITERAL, …
    value: Any  # a TensorSpec, a NumberSpec, a list or tuple of these, or a constant
    number: Any = None  # the key of the number that it computes (`symbols.Part`), or None
    is_needed: bool = False  # whether another node of the program computes the number
    read: int | None = None  # if the node is the size of a tensor: the number of the tensor
    parts: int = 0  # how many nodes just before it compute the number, if no other node does


class Output(NamedTuple):
    """A tensor that the call returns."""

    value: int  # its number, as in TemplateNode
    facts: Facts
    storage: int  # its storage's number, as in TensorSpec
    is_base: bool = False  # see `Value.is_base`
    argument: int | None = None  # the index in `Call.values` of the tensor, if it is an argument


class NumberOutput(NamedTuple):
    """A number that the call returns."""

    expression: Any
    kind: type
    value: int | None  # its node, numbered as in TemplateNode; None: no node computes it yet


class _Template(NamedTuple):
    nodes: tuple[TemplateNode, ...]
    numbers: dict[Any, int]
    fresh: tuple[int, ...]
    result: Any
    calls: tuple[tuple[Any, int], ...]
    is_symbolic: bool
    is_from_cache: bool = False
    moves: bool = False
    writes: int | None = None


class Template(ByIdentity, _Template):
    """The trace of a call.

    Attributes:
        nodes: the nodes that the call adds, including dead nodes that do not compute numbers.
        numbers: node of the recorded trace -> its number (see TemplateNode).
        fresh: sizes in bytes of the storages that the call creates.
        result: the call's result, with Outputs and NumberOutputs for tensors and numbers.
        calls: (function, how many times the trace called it) for torch functions.
        is_symbolic: whether the template has expressions, which `Symbols.bound` replaces.
        is_from_cache: whether the trace depends on torch's cache of fake tensors, because a cached
            tensor may have another storage or offset than a computed tensor.
        moves: whether the offset or storage size of one of the results depends on this cache.
        writes: the index in `Call.values` of the tensor that the call writes to and returns.
    """

    __slots__ = ()


def specs_in(value: Any) -> list[TensorSpec]:
    """Return the TensorSpecs in the value of a node."""
    if type(value) is TensorSpec:
        return [value]
    if isinstance(value, (list, tuple)):
        return [spec for item in value for spec in specs_in(item)]
    return []
