"""Find the inputs, state, results and writes of a program, and the bytes of values."""

from __future__ import annotations

from collections.abc import Hashable
from math import prod
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, OutputSpec
from torch.fx import Node

from fxpress._torch.decompose import pytree
from fxpress._torch.export import reorder_kwargs
from fxpress._torch.tracking import size_hint

_MUTATIONS = ("BUFFER_MUTATION", "PARAMETER_MUTATION", "USER_INPUT_MUTATION")
_OUTPUTS = (*_MUTATIONS, "USER_OUTPUT")
_NUMBER = 8  # bytes of an integer or a float


class Ends:
    """The placeholders and results of a program, with their specifications in the signature.

    `inputs` and `state` map placeholders to specifications; `results` are values with their
    specifications, in order; `written` maps a placeholder to the result that replaces its value.
    """

    def __init__(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
        specs: list[tuple[Node, InputSpec]] = list(
            zip(placeholders, signature.input_specs, strict=True)
        )
        given = InputKind.USER_INPUT
        self.inputs = {node: spec for node, spec in specs if spec.kind is given}
        self.state = {node: spec for node, spec in specs if spec.kind is not given}
        values = program.graph.output_node().args[0]
        self.results: list[tuple[Any, OutputSpec]] = list(
            zip(values, signature.output_specs, strict=True)
        )
        self._state_named = {spec.target: node for node, spec in self.state.items()}
        self._inputs_named = {node.name: node for node in self.inputs}
        self.written: dict[Node, Any] = {
            self.target_of(spec): value for value, spec in self.results if is_mutation(spec)
        }

    def target_of(self, mutation: OutputSpec) -> Node:
        """Return the placeholder whose value a result replaces."""
        is_input = mutation.kind.name == "USER_INPUT_MUTATION"
        named = self._inputs_named if is_input else self._state_named
        return named[mutation.target]

    def objects(self) -> set[Node]:
        """Return the placeholders of custom objects, which may change when they are used."""
        kind = InputKind.CUSTOM_OBJ
        return {node for node, spec in self.state.items() if spec.kind is kind}

    def unknown(self) -> str | None:
        """Return the kind of an input or a result that stages do not support, or None."""
        token = InputKind.TOKEN
        found = [token.name for spec in self.state.values() if spec.kind is token]
        found += [spec.kind.name for _, spec in self.results if spec.kind.name not in _OUTPUTS]
        return found[0] if found else None


def is_mutation(spec: OutputSpec) -> bool:
    """Return whether a result replaces the value of state or of an input."""
    return spec.kind.name in _MUTATIONS


def state_of(program: ExportedProgram) -> dict[str, Any]:
    """Return parameters, buffers and constants by name."""
    return {**program.constants, **program.state_dict}


def flat_inputs(program: ExportedProgram, inputs: Any) -> list[Any] | None:
    """Return the leaves of (args, kwargs); None if their structure differs from the program's."""
    args, kwargs = inputs
    spec = program.call_spec.in_spec
    try:
        kwargs = reorder_kwargs(kwargs, spec)
    except ValueError:
        return None
    leaves, given = pytree.tree_flatten((tuple(args), kwargs))
    return leaves if given == spec else None


def copied(value: Any) -> Any:
    """Return a copy of a tensor; return other values unchanged."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def value_of(node: Node) -> Any:
    """Return `meta["val"]` of a node; None if it is missing."""
    return node.meta.get("val")


def bytes_of(node: Node) -> int:
    """Return the bytes of a node's value; a symbol counts as its hint, or as 1 without a hint."""
    return _bytes(value_of(node))


def size_of(size: Any) -> int:
    """Return a size as a number: the hint of a symbol, or 1 if it has none."""
    if type(size) is int:
        return size
    hint = size_hint(size)
    return 1 if hint is None else hint


def storage_of(value: Any) -> Hashable:
    """Return a key that is equal for tensors with the same storage."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return int(value.untyped_storage()._cdata)
    return "object", id(value)


def _bytes(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        return prod(map(size_of, value.shape)) * int(value.dtype.itemsize)
    if isinstance(value, (tuple, list)):
        return sum(map(_bytes, value))
    is_number = isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float))
    return _NUMBER if is_number else 0
