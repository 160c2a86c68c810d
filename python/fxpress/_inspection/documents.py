"""Read records that hold JSON of a type of torch's schema."""

from __future__ import annotations

from fxpress import _native
from fxpress._errors import Error
from fxpress._inspection.package import InspectionError
from fxpress._inspection.torch_facts import schema


def read_document(text: bytes, kind: str, record: str) -> _native.Document:
    """Return a record that holds JSON of a type of torch's schema.

    Raises:
        InspectionError: the text is not of that type.
    """
    try:
        return schema().read(text, kind)
    except (ValueError, Error) as e:  # Error: another part of this process has imported torch
        raise InspectionError(f"record {record!r} is damaged: {e}") from None
