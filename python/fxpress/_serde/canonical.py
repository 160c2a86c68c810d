"""The canonical form of programs of torch's schema."""

from __future__ import annotations

from typing import Any

from fxpress import _torch_compat_serde as compat
from fxpress._errors import UnsupportedError
from fxpress._serde.schema import CLASSES, SCHEMA


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
    if SCHEMA.difference():
        raise UnsupportedError(
            f"the schema of this torch differs in {SCHEMA.difference()}, which has no known place "
            "in the canonical form"
        )
    if not isinstance(ep, compat.schema.ExportedProgram):
        raise AssertionError(f"expected ExportedProgram, got {type(ep).__name__}")
    document = SCHEMA.to_document(CLASSES, ep, False)
    return document.canonical(constants or ()).canonical_objects(CLASSES)
