"""Encode values that are not tensors, such as an optimizer's numbers and lists, as JSON.

torch stores such values as pickles, and reading a pickle may run code. In JSON, numbers, strings
and None are unchanged, and a container is an object with one key, the name of its type.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from fxpress._base.errors import UnsupportedError
from fxpress._files.errors import ArchiveError

_DEEPEST = 64  # the maximum depth of nested containers
# How many keys of one dict may satisfy `_has_chosen_hash`. Equal hashes slow a dict down.
_MOST_CHOSEN = 1000


def as_json(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value as JSON; UnsupportedError for a type that this module does not encode."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if depth < _DEEPEST:
        if type(value) in (list, tuple):
            items = [as_json(name, item, depth + 1) for item in value]
            return {type(value).__name__: items}
        if isinstance(value, dict):
            return {
                "dict": [
                    [as_json(name, key, depth + 1), as_json(name, item, depth + 1)]
                    for key, item in value.items()
                ]
            }
    raise UnsupportedError(
        f"{name!r} is a {type(value).__name__}, which only a pickle can store: expected tensors, "
        "numbers, strings, None, or lists, tuples and dicts of them. "
        "torch.distributed.checkpoint.FileSystemWriter writes pickles"
    )


def from_json(name: str, encoded: Any, depth: int = 0) -> Any:
    """Return the value that `as_json` has encoded; ArchiveError if the encoding is damaged."""
    if encoded is None or type(encoded) in (bool, int, float, str):
        return encoded
    try:
        if depth < _DEEPEST:
            ((kind, items),) = encoded.items()
            if kind in ("list", "tuple"):
                values = [from_json(name, item, depth + 1) for item in items]
                return values if kind == "list" else tuple(values)
            if kind == "dict":
                pairs = [[from_json(name, each, depth + 1) for each in pair] for pair in items]
                if sum(_has_chosen_hash(key) for key, _ in pairs) <= _MOST_CHOSEN:
                    return dict(pairs)
    except (AttributeError, TypeError, ValueError):
        pass
    raise ArchiveError(f"the value {name!r} is damaged")


def _has_chosen_hash(key: Any) -> bool:
    """Return whether a file could contain many different keys with the same hash as this key."""
    return type(key) is tuple or (type(key) is int and key.bit_length() > 64)


def pickled(value: Any) -> io.BytesIO:
    """Pickle a value, because torch's planners expect a pickle; files contain the value as JSON."""
    made = io.BytesIO()
    torch.save(value, made)
    made.seek(0)
    return made


def unpickled(name: str, data: io.BytesIO) -> Any:
    """Unpickle a value that torch's planner pickled; UnsupportedError if that may run code."""
    data.seek(0)
    try:
        return torch.load(data, weights_only=True)
    except Exception as error:
        raise UnsupportedError(
            f"{name!r} is an object that only a pickle can store: {error}"
        ) from None
