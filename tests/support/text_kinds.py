"""Find the types of the texts in a program's file: texts without their names and numbers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from fxpress._files.serde.schema import SCHEMA, TYPES, describe
from fxpress.serialize import deserialize, serialize

KNOWN = Path(__file__).parent.parent / "corpus" / "text_kinds.txt"
_FIELDS = {
    name: {field: shape for field, shape, _ in describe(cls)[2]} for name, cls in TYPES.items()
}
_RULES = {(of, field): rule for of, field, rule, _ in SCHEMA.rules() if rule is not None}
_ANYTHING = (
    "Literal",
    "TreeSpec",
    "JsonObject",
    "stack_trace",
    "from_node",
    "custom",
)  # rules, and keys of metadata, with texts of any type
_WORD = re.compile(r"[^\W\d]\w*")
_TOKEN = re.compile(r"\w+\(|\.[^\W\d]\w*|[^\W\d]\w*|\d+(?:\.\d+)?|'[^']*'|[^\w\s]")


def kinds_of(document: Any, of: str = "ExportedProgram") -> Iterator[str]:
    """Yield the field and the type of each text in an object of the schema, with repetitions."""
    for field, value in document.items():
        shape = _FIELDS[of][field]
        for text in _texts(value, shape.split()):
            if isinstance(text, dict):
                yield from kinds_of(text, shape.split()[-1])
            else:
                rule = _RULES.get((of, field), "")
                yield from _kinds(f"{of}.{field}", rule, text)


def _texts(value: Any, shape: list[str]) -> Iterator[Any]:
    """Yield the texts in a value, and its objects; an entry of metadata is a pair."""
    if value is None:
        return
    if shape[0] == "optional":
        yield from _texts(value, shape[1:])
    elif shape[0] == "list":
        for each in value:
            yield from _texts(each, shape[1:])
    elif shape[0] == "map":
        for key, each in value.items():
            if shape[1] == "str":
                yield key, each
            else:
                yield key
                yield from _texts(each, shape[1:])
    elif isinstance(value, str | dict):
        yield value


def _kinds(field: str, rule: str, text: Any) -> Iterator[str]:
    if isinstance(text, tuple):
        rule, text = text
        field = f"{field}[{rule}]"
    if rule in _ANYTHING:
        return
    if rule in ("Expression", "Guard"):
        kinds = {
            each if each[0] == "." or each[-1] == "(" else _plain(each)
            for each in _TOKEN.findall(text)
        }
    else:
        kinds = {re.sub(r"n(\.[n0])+", "n", _plain(entry)) for entry in text.split(";")}
    for kind in kinds:
        yield f"{field} {kind}"


def _plain(text: str) -> str:
    return re.sub(r"\d+(\.\d+)?", "0", _WORD.sub("n", text))


def assert_known_kinds(program: ExportedProgram) -> None:
    """Assert that a program loads, and that all of its texts are of known types."""
    written = serialize(program)
    kinds = set(kinds_of(json.loads(written.exported_program)))
    new = kinds - set(KNOWN.read_text().splitlines())
    assert not new, f"look whether the gate takes these, and add them to {KNOWN.name}: {new}"
    deserialize(written)
