"""Read JSON of a file without making all of its values."""

from __future__ import annotations

from fxpress import _native
from fxpress._base.errors import Error
from fxpress._files.format.fields import DEPTH
from fxpress._files.format.package import Allowance, InspectionError


def read_places(text: bytes, record: str, memory: Allowance) -> _native.JsonValue:
    """Return what a record holds as JSON, whose values are made when they are asked for.

    Args:
        text: what the record holds.
        record: its name, for errors.
        memory: what is charged for the places of the values.

    Raises:
        InspectionError: it is no JSON, too deep, or it needs too much memory.
    """
    budget = _native.Budget(memory.memory_left, DEPTH)
    budget.set_place("it needs too much memory for a file of this size")
    try:
        value = _native.JsonValue(text, budget)
    except (ValueError, Error) as e:  # Error: another part of this process has imported torch
        raise InspectionError(f"record {record!r} is damaged: {e}") from None
    memory.charge(budget.used, record)
    return value
