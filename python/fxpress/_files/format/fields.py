"""Read JSON of a file, whose fields may be missing or of any kind."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fxpress import _native
from fxpress._files.format.memory import objects_of
from fxpress._files.format.package import Allowance, InspectionError

DEPTH = 500  # values within each other
# What reading a field raises that is missing or of another kind.
DAMAGE = (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError)


def parse(text: bytes, record: str, memory: Allowance | None = None) -> dict[str, Any]:
    """Return the object that a record holds as JSON.

    Args:
        text: what the record holds.
        record: its name, for errors.
        memory: what is charged, such as the file that it is of; None: the text is all of it.

    Raises:
        InspectionError: it is no JSON, no object, too deep, or it needs too much memory.
    """
    memory = memory or Allowance(len(text))
    memory.charge(objects_of(text, memory.memory_left), record)
    if _native.is_nested_deeper(text, DEPTH):
        raise InspectionError(f"record {record!r} has more than {DEPTH} values within each other")
    try:
        return an_object(json.loads(text))
    except (ValueError, TypeError) as e:
        raise InspectionError(f"record {record!r} is damaged: {e}") from None


@contextmanager
def damage_is_named(place: str) -> Iterator[None]:
    """Return a block in which a field that is missing or of another kind is an InspectionError."""
    try:
        yield
    except DAMAGE as error:
        raise damage(place, error) from None


def damage(place: str, error: Exception) -> InspectionError:
    """Return what tells that a place is damaged, for one of the errors of DAMAGE."""
    if isinstance(error, KeyError):
        return InspectionError(f"{place} has no field {error}")
    return InspectionError(f"{place} is damaged: {error}")


def an_object(value: Any) -> dict[str, Any]:
    """Return a value; TypeError unless it is an object of JSON."""
    if type(value) is not dict:
        raise TypeError(f"expected an object, got {_short(value)}")
    return value


def a_list(value: Any) -> list[Any]:
    """Return a value; TypeError unless it is a list."""
    if type(value) is not list:
        raise TypeError(f"expected a list, got {_short(value)}")
    return value


def a_text(value: Any) -> str:
    """Return a value; TypeError unless it is a text."""
    if type(value) is not str:
        raise TypeError(f"expected a text, got {_short(value)}")
    return value


def an_int(value: Any) -> int:
    """Return a value; TypeError unless it is an int of 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"expected an int of 64 bits, got {_short(value)}")
    return value


def one_of(value: Any) -> tuple[str, Any]:
    """Return the kind and the value of a union; TypeError unless exactly one kind is set."""
    present = list(an_object(value).items())
    if len(present) > 1:  # writers that name all kinds set the others to null
        present = [(kind, held) for kind, held in present if held is not None]
    if len(present) != 1:
        raise TypeError(f"expected one value of some kind, got {_short(value)}")
    return present[0]


def _short(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value)}"
    text = repr(value) if type(value) is not int else f"{value:#x}"  # of any number of digits
    return text if len(text) <= 40 else text[:37] + "..."
