"""Read records that hold JSON of a type of torch's schema."""

from __future__ import annotations

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._files.format.fields import DEPTH
from fxpress._files.format.package import InspectionError, Package
from fxpress._files.format.torch_facts import schema


def read_document(text: bytes, kind: str, record: str, package: Package) -> _native.Document:
    """Return a record that holds JSON of a type of torch's schema.

    Raises:
        InspectionError: the text is not of that type, or it needs too much memory.
    """
    budget = _native.Budget(package.memory_left, DEPTH)
    budget.set_place("it needs too much memory for a file of this size")
    try:
        document = schema().read(text, kind, budget)
    except (ValueError, Error) as e:  # Error: another part of this process has imported torch
        raise InspectionError(f"record {record!r} is damaged: {e}") from None
    package.charge(budget.used, record)
    return document
