"""Read JSON from untrusted files: check types and nesting, and estimate the memory of values."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fxpress import _native
from fxpress._base.errors import Error, is_about_input
from fxpress._base.observing.text import counted_text
from fxpress._files.format.limit_values import DEFAULT
from fxpress._files.format.package import Allowance, InspectionError, Package, character_bytes
from fxpress._files.format.torch_facts import schema

# The exceptions that code raises when it reads a field that is missing or of a wrong type.
DAMAGE = (AttributeError, KeyError, IndexError, OverflowError, TypeError, ValueError)
# Estimated bytes that `json.loads` allocates for each "{", "[" and "," in a text.
_OBJECT, _LIST, _ITEM = 200, 120, 64
_KEY = 120  # estimated bytes of a key; `json.loads` allocates a repeated key only once
_MOST_DIMENSIONS = 64  # torch's limit for the dimensions of a tensor
_OTHERS = bytes(set(range(256)).difference(b"{[,:"))  # bytes that `objects_of` deletes
# Matches a key of a JSON object. The limit of 100 escapes bounds the memory that `re` uses.
_KEYS = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*){0,100})"\s*:')
_SLICES, _SLICE = 64, 1 << 14  # the number of samples of a long text, and the bytes of each


def parse(text: bytes, record: str, memory: Allowance | None = None) -> dict[str, Any]:
    """Return the JSON object in a record's text, and charge its estimated size to `memory`."""
    memory = memory or Allowance(len(text))
    memory.charge(objects_of(text, memory.memory_left), record)
    try:
        return expect_object(load_json(text))
    except (ValueError, TypeError) as e:
        raise InspectionError(f"record {record!r} is damaged: {e}") from None


def load_json(text: str | bytes, depth: int = DEFAULT.depth, **options: Any) -> Any:
    """Return the value of JSON text; ValueError if the text is damaged or nested beyond `depth`.

    All JSON from files is parsed here, because `json.loads` recurses for each level of nesting.
    `options` are passed to `json.loads`.
    """
    if _native.is_nested_deeper(text, depth):
        raise ValueError(f"its values are nested more than {depth} levels deep")
    # Decode as UTF-8, as `is_nested_deeper` does; `json.loads` would also accept UTF-16 bytes.
    decoded = text if isinstance(text, str) else str(text, "utf-8", "surrogatepass")
    try:
        return json.loads(decoded, **options)
    except RecursionError:  # the caller has used most of Python's recursion limit
        raise ValueError("its values are nested too deeply") from None


def read_document(text: bytes, kind: str, record: str, package: Package) -> _native.Document:
    """Parse JSON text of the type `kind` in torch's schema; InspectionError if it is damaged."""
    budget = _native.Budget(package.memory_left, DEFAULT.depth)
    budget.set_place("it needs too much memory for a file of this size")
    try:
        document = schema().read(text, kind, budget)
    except (ValueError, Error) as e:  # a limit raises LimitError with torch, ValueError without it
        raise InspectionError(f"record {record!r} is damaged: {e}") from None
    package.charge(budget.used, record)
    return document


@contextmanager
def damage_is_named(place: str) -> Iterator[None]:
    """Run a block; convert exceptions of the types in `DAMAGE` to `damage(place, error)`."""
    try:
        yield
    except DAMAGE as error:
        if not is_about_input(error):
            raise
        raise damage(place, error) from None


def damage(place: str, error: Exception) -> InspectionError:
    """Return the InspectionError about `place` for an exception of a type in `DAMAGE`."""
    if isinstance(error, KeyError):
        return InspectionError(f"{place} has no field {error}")
    return InspectionError(f"{place} is damaged: {error}")


def expect_object(value: Any) -> dict[str, Any]:
    """Return the value; TypeError unless it is a JSON object (a dict)."""
    if type(value) is not dict:
        raise TypeError(f"expected an object, got {_short(value)}")
    return value


def expect_list(value: Any) -> list[Any]:
    """Return the value; TypeError unless it is a list."""
    if type(value) is not list:
        raise TypeError(f"expected a list, got {_short(value)}")
    return value


def expect_str(value: Any) -> str:
    """Return the value; TypeError unless it is a str."""
    if type(value) is not str:
        raise TypeError(f"expected a string, got {_short(value)}")
    return value


def expect_int(value: Any) -> int:
    """Return the value; TypeError unless it is an int of 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"expected an int of 64 bits, got {_short(value)}")
    return value


def sizes_in(value: Any) -> tuple[int, ...]:
    """Return the sizes of a tensor; TypeError or ValueError unless torch allows such sizes."""
    sizes = tuple(map(expect_int, expect_list(value)))
    if len(sizes) > _MOST_DIMENSIONS or min(sizes, default=0) < 0:
        raise ValueError(
            f"expected at most {_MOST_DIMENSIONS} non-negative sizes of a tensor, got {len(sizes)} "
            f"sizes with the minimum {min(sizes)}"
        )
    return sizes


def expect_one_of(value: Any) -> tuple[str, Any]:
    """Return (name, value) of the field that is set in a union; TypeError unless exactly one is."""
    present = list(expect_object(value).items())
    if len(present) > 1:  # some writers also list the unset fields, with null
        present = [(kind, held) for kind, held in present if held is not None]
    if len(present) != 1:
        raise TypeError(f"expected a union with one field, got {_short(value)}")
    return present[0]


def _short(value: Any) -> str:
    if isinstance(value, dict):
        return f"an object with {counted_text(len(value), 'field')}"
    if isinstance(value, list):
        return f"a list of {counted_text(len(value), 'item')}"
    text = repr(value) if type(value) is not int else f"{value:#x}"  # repr() rejects large ints
    return text if len(text) <= 40 else text[:37] + "..."


def objects_of(text: bytes, limit: int) -> int:
    """Return an upper estimate of the bytes that `json.loads` uses for a text."""
    marks = text.translate(None, _OTHERS)  # much shorter than `text`, so that counting is faster
    width = character_bytes(text, b"\\u" in text)
    values = len(text) * width * (2 if b"\\" in text or width > 1 else 1)
    values += _OBJECT * marks.count(b"{") + _LIST * marks.count(b"[") + _ITEM * marks.count(b",")
    keys = marks.count(b":")
    # Distinct keys are counted only if that decides whether the memory is within `limit`.
    if values <= limit < values + _KEY * keys:
        keys = _distinct_keys(text, keys)
    return values + _KEY * keys


def _distinct_keys(text: bytes, keys: int) -> int:
    """Count the distinct keys in a text; if the text is long, estimate the number from samples."""
    if len(text) <= _SLICES * _SLICE:
        return len(set(_KEYS.findall(text)))
    # The samples depend on the entire text, so that a file cannot hide keys from them.
    places = random.Random(zlib.crc32(text))
    found = Counter[bytes]()
    for _ in range(_SLICES):
        start = places.randrange(len(text) - _SLICE)
        found.update(_KEYS.findall(text, start, start + _SLICE))
    once = sum(number == 1 for number in found.values())
    return len(found) + keys * once // max(found.total(), 1)


_NO_STACK = "_empty_nn_module_stack_from_metadata_hook"  # torch's key for nodes outside of modules


def entries_of(stack: str) -> Iterator[tuple[str, str]]:
    """Yield (path, class) of each module in a node's `nn_module_stack`, outermost first."""
    for entry in filter(None, stack.split(";")):
        key, path, class_name = [*entry.split(",", 2), "", ""][:3]
        yield ("", "") if key == _NO_STACK else (path, class_name)
