"""Payloads, and every string of a JSON value that can become one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tests.support.sentinel import MODULE

SINGLE = f"__import__('{MODULE}').hit()"
DOUBLE = f'__import__("{MODULE}").hit()'

# Functions from a text in a file to a text with a payload. Each payload becomes code if the text is
# written to one context in source code: an expression, a name, a string, a comment, a line.
SHAPES: dict[str, Callable[[str], str]] = {
    "expression": lambda _: SINGLE,
    "argument": lambda text: f"{text}, _={SINGLE}",
    "default": lambda text: f"{text}={DOUBLE}",
    "annotation": lambda text: f"{text}: {SINGLE}",
    "call": lambda text: f"{text}({SINGLE})",
    "index": lambda text: f"{text}[{DOUBLE}]",
    "operand": lambda text: f"{text} + {DOUBLE}",
    "guard": lambda text: f"{text} or {SINGLE}",
    "single quote": lambda text: f"{text}' + str({DOUBLE}) + '",
    "double quote": lambda text: f'{text}" + str({SINGLE}) + "',
    "triple quote": lambda text: f'{text}""" + str({SINGLE}) + """',
    "backslash": lambda text: f"{text}\\' + str({DOUBLE}) #",
    "key": lambda text: f"{text}'] + [{DOUBLE}] + ['",
    "quoted key": lambda text: f'{text}"] + [{SINGLE}] + ["',
    "call with key": lambda text: f"{text}', {DOUBLE}) #",
    "line": lambda text: f"{text}\n{SINGLE}\n#",
    "line in a body": lambda text: f"{text}\n    {SINGLE}\n    #",
    "line of two spaces": lambda text: f"{text}\n  {SINGLE}\n  #",
    "carriage return": lambda text: f"{text}\r    {SINGLE}\r    #",
    "statement": lambda text: f"{text}; {SINGLE} #",
    "comment": lambda text: f"{text} = {SINGLE} #",
    "end of a signature": lambda text: f"{text}):\n    {SINGLE}\ndef other(self",
    "decorator": lambda text: f"{text}\n@{SINGLE}\ndef other():\n    pass\n",
    "f-string": lambda text: f"{text}{{{SINGLE}}}",
    "format": lambda text: f"{text}{{0.__class__.__init__.__globals__}}%s%(x)s",
    "attributes": lambda text: f"{text}.__class__.__base__.__subclasses__",
    "module": lambda _: MODULE,
    "attribute of a module": lambda _: f"{MODULE}.hit",
    "class of a module": lambda _: f"{MODULE}:Hit",
}

# The labels of dicts with names of the program as keys, not fields of the schema.
_MAPS = re.compile(
    r"\.(tensor_values|sym_int_values|sym_bool_values|sym_float_values|custom_obj_values"
    r"|opset_version|range_constraints|treespec_namedtuple_fields|as_string_to_argument|config)$"
)
_PIECES = re.compile(r"([,;:.']+)")  # what divides a text into names


class Slot(NamedTuple):
    """A string of a JSON value."""

    label: str  # the fields that lead to it, without positions
    text: str


def rewrite(value: Any, change: Callable[[Slot], str], label: str = "") -> Any:
    """Return a copy of a JSON value, with each string replaced by `change`.

    Strings are values, keys, strings within a text that is JSON, and names within a text of several
    names. `change` is always called in the same order.
    """
    if isinstance(value, list):
        return [rewrite(item, change, f"{label}[]") for item in value]
    if isinstance(value, dict):
        inner = "{}" if _MAPS.search(label) else None
        return {
            change(Slot(f"{label} key", key)): rewrite(
                item, change, f"{label}.{inner or key}" if inner is None else f"{label}{inner}"
            )
            for key, item in value.items()
        }
    return _text(value, change, label) if isinstance(value, str) else value


def _text(text: str, change: Callable[[Slot], str], label: str) -> str:
    whole = change(Slot(label, text))
    if text[:1] in ("[", "{"):
        try:
            return _within(whole, text, rewrite(json.loads(text), change, f"{label} json"))
        except ValueError:
            pass
    pieces = _PIECES.split(text)
    if len(pieces) > 1 and "stack_trace" not in label:
        names = (change(Slot(f"{label} part", p)) if p and i % 2 == 0 else p
                 for i, p in enumerate(pieces))  # fmt: skip
        return whole if whole != text and list(names) else "".join(names)
    return whole


def _within(whole: str, text: str, inner: Any) -> str:
    return whole if whole != text else json.dumps(inner)


def slots(value: Any) -> list[Slot]:
    """All strings of a JSON value, in the order in which `rewrite` comes to them."""
    found: list[Slot] = []

    def note(slot: Slot) -> str:
        found.append(slot)
        return slot.text

    rewrite(value, note)
    return found


def with_payload(value: Any, chosen: Sequence[int], shape: Callable[[str], str]) -> Any:
    """The JSON value with a payload in the slots at some positions."""
    wanted, position = set(chosen), -1

    def change(slot: Slot) -> str:
        nonlocal position
        position += 1
        return shape(slot.text) if position in wanted else slot.text

    return rewrite(value, change)


def groups(value: Any, of_each: int) -> dict[str, list[int]]:
    """Return groups of positions: single slots, `of_each` for a label, and all slots of a text."""
    by_label: dict[str, list[int]] = {}
    by_text: dict[str, list[int]] = {}
    for position, slot in enumerate(slots(value)):
        by_label.setdefault(slot.label, []).append(position)
        by_text.setdefault(slot.text, []).append(position)
    chosen = {
        f"{label} #{i}": [position]
        for label, positions in by_label.items()
        for i, position in enumerate(positions[:of_each])
    }
    same = {f"every {t[:40]!r}": p for t, p in by_text.items() if len(p) > 1 and t}
    return chosen | same
