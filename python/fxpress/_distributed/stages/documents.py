"""Read and write the JSON files of plans, profiles and manifests. Files are untrusted."""

from __future__ import annotations

import contextlib
import hashlib
import json
import reprlib
from collections.abc import Iterator
from typing import Any

from fxpress._distributed.errors import StageError
from fxpress._files.format.fields import load_json
from fxpress._files.serde.limits import Budget


class Fields:
    """Fields of a JSON object. Methods such as `text` return a field after they check its type."""

    def __init__(self, kind: str, values: Any, path: str = "") -> None:
        self._kind, self._path = kind, path
        if not isinstance(values, dict):
            raise self._error(path.removesuffix("."), "an object", values)
        self._values: dict[str, Any] = values
        self._read: set[str] = set()  # the names of the fields that methods have returned

    def text(self, name: str) -> str:
        """Return a string."""
        value = self.plain(name)
        self.require(isinstance(value, str), name, "a str")
        return str(value)

    def has(self, name: str) -> bool:
        """Return whether a field exists and is not null."""
        return self.plain(name) is not None

    def part(self, name: str) -> Fields:
        """Return the fields of a nested object."""
        return Fields(self._kind, self.plain(name), f"{self._path}{name}.")

    def plain(self, name: str) -> Any:
        """Return the value of a field, of any type; None if the field is missing."""
        self._read.add(name)
        return self._values.get(name)

    def truth(self, name: str) -> bool:
        """Return a bool."""
        value = self.plain(name)
        self.require(isinstance(value, bool), name, "a bool")
        return bool(value)

    def integer(self, name: str) -> int:
        """Return an integer that is not negative."""
        value = self.plain(name)
        self.require(_is_count(value), name, "an int of at least 0")
        return int(value)

    def integers(self, name: str, length: int | None = None) -> tuple[int, ...]:
        """Return non-negative integers, exactly `length` of them unless `length` is None."""
        value = self._list(name)
        self.require(all(map(_is_count, value)), name, "ints of at least 0")
        self.require(length is None or len(value) == length, name, f"{length} ints")
        return tuple(value)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return strings."""
        value = self._list(name)
        self.require(all(isinstance(each, str) for each in value), name, "a list of str")
        return tuple(value)

    def parts(self, name: str) -> Iterator[Fields]:
        """Yield the fields of each object of a list."""
        for i, each in enumerate(self._list(name)):
            yield Fields(self._kind, each, f"{self._path}{name}[{i}].")

    def require(self, holds: bool, name: str, expected: str) -> None:
        """Raise StageError for a field, unless a condition holds."""
        if not holds:
            raise self._error(f"{self._path}{name}", expected, self._values.get(name))

    def end(self) -> None:
        """Raise StageError if there are fields that were not read."""
        names = set(self._values)
        if names != self._read:
            raise self._error("the set of fields", f"{sorted(self._read)}", sorted(names))

    def check_digest(self) -> None:
        """Raise StageError unless the field `digest` is the digest of the other fields."""
        others = {name: value for name, value in self._values.items() if name != "digest"}
        digest = None
        with contextlib.suppress(RecursionError):  # nested too deeply for `digest_of`
            digest = digest_of(others)
        if self.text("digest") != digest:
            raise StageError(f"{self._kind!r} is damaged: its digest is wrong")

    def _list(self, name: str) -> list[Any]:
        value = self.plain(name)
        self.require(isinstance(value, list), name, "a list")
        return list(value)

    def _error(self, field: str, expected: str, found: Any) -> StageError:
        found = reprlib.repr(found)
        return StageError(
            f"{self._kind!r} is damaged: {field} is invalid: expected {expected}, found {found}"
        )


def digest_of(content: dict[str, Any]) -> str:
    """Return the SHA-256 of a JSON object, independent of the order of its keys."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a JSON file, with their digest."""
    return {**content, "digest": digest_of(content)}


def read(text: str | bytes, kind: str, version: int, budget: Budget | None = None) -> Fields:
    """Parse a JSON file; StageError unless its "format" is `kind` and it has this "version"."""
    try:
        values = load_json(text) if budget is None else budget.load_json(text, f"the {kind}")
    except (ValueError, TypeError):
        raise StageError(f"the text is not of the format {kind!r}: it is not JSON") from None
    if not isinstance(values, dict) or values.get("format") != kind:
        raise StageError(f"the text is not of the format {kind!r}")
    fields = Fields(kind, values)
    fields.text("format")
    found = fields.integer("version")
    if found != version:
        raise StageError(f"{kind!r} has version {found}, but fxpress reads version {version}")
    return fields


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63
