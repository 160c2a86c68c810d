"""Bring programs of torch's schema into their canonical form."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from fxpress._base.errors import UnsupportedError
from fxpress._files.serde.schema import CLASSES, SCHEMA
from fxpress._torch import serde as compat


def _refuse_unknown_fields() -> None:
    if SCHEMA.difference():
        raise UnsupportedError(
            f"the schema of this torch differs in {SCHEMA.difference()}, which has no known place "
            "in the canonical form"
        )


def canonicalize(ep: Any, constants: set[str] | None = None) -> Any:
    """Return the canonical form of a program.

    Programs that differ only in the names of values, the order of independent nodes and the
    metadata of nodes have equal canonical forms.

    Args:
        ep: an ExportedProgram of torch's schema, which is not changed.
        constants: the names of constants, which no node defines.

    Returns:
        Another ExportedProgram of the schema. All names are replaced, also the names inside of
        dicts and the names of custom objects that are user inputs, which torch leaves unchanged.

    Raises:
        AssertionError: `ep` is of another class; or the graph has a cycle, uses a name that no node
            or more than one node defines, or has another number of inputs or outputs than the
            signature.
        KeyError: the signature has a name that the graph does not have.
        fxpress.UnsupportedError: the schema of this torch has fields that fxpress does not know.

    Stands in for `torch._export.serde.serialize.canonicalize`.

    Example:
        >>> from fxpress.serialize import ExportedProgramSerializer, canonicalize
        >>> stored = ExportedProgramSerializer().serialize(program).exported_program
        >>> type(canonicalize(stored)) is type(stored)
        True
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
    """Return the canonical form of a graph, and a dict from old names of values to new names.

    Stands in for `torch._export.serde.serialize._canonicalize_graph`, which changes its argument.

    Args:
        sorted_inputs, sorted_outputs: the inputs and outputs that replace those of the graph.
        graph: a `schema.Graph`, which is not changed.
        constants: the names of constants, which no node defines.
    """
    _refuse_unknown_fields()
    ordered = dataclasses.replace(graph, inputs=list(sorted_inputs), outputs=list(sorted_outputs))
    names: dict[str, str] = {}
    made = SCHEMA.canonical_graph(CLASSES, ordered, constants, names)
    made.inputs = _like(sorted_inputs, made.inputs)
    made.outputs = _like(sorted_outputs, made.outputs)
    return made, dict(sorted(names.items(), key=lambda item: int(item[1][1:])))
