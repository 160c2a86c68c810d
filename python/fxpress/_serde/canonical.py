"""The canonical form of programs of torch's schema."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fxpress._errors import UnsupportedError
from fxpress._serde.schema import CLASSES, SCHEMA
from fxpress._torch import serde as compat


def _refuse_unknown_fields() -> None:
    if SCHEMA.difference():
        raise UnsupportedError(
            f"the schema of this torch differs in {SCHEMA.difference()}, which has no known place "
            "in the canonical form"
        )


def canonicalize(ep: Any, constants: set[str] | None = None) -> Any:
    """The canonical form of a program: the same for programs that differ only in the names of
    values, the order of independent nodes, and the metadata of nodes.

    Args:
        ep: an ExportedProgram of torch's schema; it stays as it is.
        constants: names of constants, which no node defines.

    Returns:
        Another ExportedProgram of the schema. Names inside of dicts and of custom objects that are
        user inputs are replaced like all others, where torch leaves the old ones.

    Raises:
        AssertionError: the graph has a cycle, or names that nothing or more than one node defines,
            or another number of inputs or outputs than the signature.
        KeyError: the signature has a name that the graph has not.
        fxpress.UnsupportedError: the schema of this torch has fields that fxpress does not know.

    Stands in for `torch._export.serde.serialize.canonicalize`.
    """
    _refuse_unknown_fields()
    if not isinstance(ep, compat.schema.ExportedProgram):
        raise AssertionError(f"expected ExportedProgram, got {type(ep).__name__}")
    return SCHEMA.canonical(CLASSES, ep, constants or ())


def _like(given: Sequence[Any], values: list[Any]) -> Sequence[Any]:
    return tuple(values) if isinstance(given, tuple) else values


def _canonicalize_graph(
    sorted_inputs: Sequence[Any], sorted_outputs: Sequence[Any], graph: Any, constants: set[str]
) -> tuple[Any, dict[str, str]]:
    """The canonical form of a graph with these inputs and outputs, and the new names of its values.

    Stands in for torch's function of that name, which changes the graph that it is given.
    """
    _refuse_unknown_fields()
    ordered = dataclasses.replace(graph, inputs=list(sorted_inputs), outputs=list(sorted_outputs))
    names: dict[str, str] = {}
    made = SCHEMA.canonical_graph(CLASSES, ordered, constants, names)
    made.inputs = _like(sorted_inputs, made.inputs)
    made.outputs = _like(sorted_outputs, made.outputs)
    return made, dict(sorted(names.items(), key=lambda item: int(item[1][1:])))
