"""Values that are not tensors, such as an optimizer's numbers and lists, encoded as JSON.

torch keeps such values as pickles. Reading a pickle may run code, so they are JSON here: numbers,
strings and None as they are, and containers as an object with one key, which names the type.
"""

from __future__ import annotations

import io
from typing import Any

import torch

from fxpress._base.errors import UnsupportedError
from fxpress._files.errors import ArchiveError

_DEEPEST = 64  # nested containers
_MOST_CHOSEN = 1000  # keys of a dict whose hashes a file can choose


def as_json(name: str, value: Any, depth: int = 0) -> Any:
    """Return a value as JSON; UnsupportedError for a value of another type."""
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
        f"{name!r} is a {type(value).__name__}, which only a pickle can hold: keep tensors, "
        "numbers, texts, lists and dicts of them in the state, or use "
        "torch.distributed.checkpoint.FileSystemWriter"
    )


def from_json(name: str, said: Any, depth: int = 0) -> Any:
    """Return the value that `as_json` wrote; ArchiveError when it is damaged."""
    if said is None or type(said) in (bool, int, float, str):
        return said
    try:
        if depth < _DEEPEST:
            ((kind, items),) = said.items()
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
    """Return whether a file could contain any number of keys of this type with equal hashes."""
    return type(key) is tuple or (type(key) is int and key.bit_length() > 64)


def pickled(value: Any) -> io.BytesIO:
    """Return the pickle of a value, which torch's planners require. It is not read from a file."""
    made = io.BytesIO()
    torch.save(value, made)
    made.seek(0)
    return made


def unpickled(name: str, data: io.BytesIO) -> Any:
    """Return the value of a pickle from torch's planner; UnsupportedError for other types."""
    data.seek(0)
    try:
        return torch.load(data, weights_only=True)
    except Exception as error:
        raise UnsupportedError(
            f"{name!r} is an object that only a pickle can store: {error}"
        ) from None
