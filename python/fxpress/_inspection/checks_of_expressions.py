"""Look at symbolic expressions: what they are, and where they cannot stand."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

from fxpress._inspection.assumptions import implied
from fxpress._inspection.checks_of_operators import is_installed
from fxpress._inspection.expression_knowledge import Knowledge
from fxpress._inspection.expression_values import (
    IMAGINARY,
    INFINITE,
    NOT_A_NUMBER,
    TRUTH,
    TUPLE,
    Key,
    Value,
)
from fxpress._inspection.fields import a_list, a_text, an_object, one_of
from fxpress._inspection.findings import Found
from fxpress._serde.expression_limits import ExcessError, GrammarError
from fxpress._serde.expression_text import read
from fxpress._serde.limit_values import DEFAULT

_SIZE, _STRIDE, _OFFSET, _INT, _OTHER = "size", "stride", "offset", "int", "other"
_PARTS = {"sizes": _SIZE, "strides": _STRIDE}
_TABLES = {"sym_int_values": _INT, "sym_float_values": _OTHER, "sym_bool_values": _OTHER}
_INTS = 1 << 63
_MOST_COMPARISONS = 2000
_NO_INTS = (IMAGINARY, INFINITE, NOT_A_NUMBER)
_UNBACKED = re.compile(r"(u|zuf)\d+")
_NAME = re.compile(r"\w+")
# Operators that say of a symbol that it is a size.
_CONSTRAINING = ("sym_constrain_range", "_assert_scalar", "torch._check")


class _Use(NamedTuple):
    """A place of an expression."""

    place: str
    role: str
    text: str
    hint: tuple[str, Any] | None


class Expressions:
    """The expressions of a program. They are noted one after the other, and checked together.

    Args:
        ranges: the ranges of symbols, as the program has them.
    """

    def __init__(self, ranges: dict[str, Any]) -> None:
        self._ranges = ranges
        self._uses: list[_Use] = []
        self._ranged: set[str] = {name for key in ranges for name in _NAME.findall(key)}
        self._is_constrained = False

    def note_operator(self, target: str) -> None:
        """Note an operator of a graph."""
        self._is_constrained |= any(name in target for name in _CONSTRAINING)

    def note_graph(self, graph: dict[str, Any], names: Iterable[str], place: str) -> None:
        """Note what a graph says of its values.

        Raises:
            KeyError, TypeError: a field is damaged.
        """
        tensors = graph["tensor_values"]
        for name in names:
            if name in tensors:
                self._note_tensor(tensors[name], f"{place}.tensor_values[{name!r}]")
            for table, role in _TABLES.items():
                if name in graph[table]:
                    self._note_number(graph[table][name], f"{place}.{table}[{name!r}]", role)

    def _note_tensor(self, meta: dict[str, Any], place: str) -> None:
        before = len(self._uses)
        offset, start = one_of(meta["storage_offset"])
        for part, role in _PARTS.items():
            for number, size in enumerate(a_list(meta[part])):
                # Where torch cannot place a tensor, the tensor is at the start of its storage.
                of = role if offset == "as_int" else _INT
                self._note_number(size, f"{place}.{part}[{number}]", of)
        self._note_number(meta["storage_offset"], f"{place}.storage_offset", _OFFSET)
        if start != 0:  # a load takes the symbols of the tensor for sizes
            for use in self._uses[before:]:
                self._ranged.update(_NAME.findall(use.text))

    def _note_number(self, number: Any, place: str, role: str) -> None:
        kind, held = one_of(number)
        if kind == "as_expr":
            hint = an_object(held).get("hint")
            read_hint = one_of(hint) if hint is not None else None
            self._uses.append(_Use(place, role, a_text(held["expr_str"]), read_hint))

    def check(self) -> Found:
        """Yield what is wrong with the ranges and the noted expressions."""
        for name, limits in self._ranges.items():
            low, high = limits.get("min_val"), limits.get("max_val")
            if low is not None and high is not None and low > high:
                yield f"range_constraints[{name!r}]: no value is from {low} to {high}", False
        known = {use.text: _Read(use.text) for use in self._uses}
        variants: dict[str, dict[Key, set[str]]] = defaultdict(lambda: defaultdict(set))
        for text, held in known.items():
            for key in held.knowledge.symbols:
                variants[key[0]][key].add(text)
        each = {(use.text, use.hint) for use in self._uses}
        if sum(known[text].knowledge.comparisons for text, _ in each) > _MOST_COMPARISONS:
            yield "a load may take more time than its limits allow, for Max and Min of many", True
        for use in self._uses:
            held = known[use.text]
            for said, is_note in held.said:
                yield f"{use.place}: {said}", is_note
            if held.value is not None:
                for said in _misplaced(use, held.value, self._only(variants, use.text, held)):
                    yield f"{use.place}: {said}", False

    def _only(
        self, variants: dict[str, dict[Key, set[str]]], text: str, held: _Read
    ) -> frozenset[Key]:
        """Return the symbols of an expression that are certainly what they are there.

        A load takes an expression for an earlier one that reads the same, and gives it a range.
        """
        found = set()
        for key, count in held.knowledge.symbols.items():
            name = key[0]
            of_others = [
                other
                for other, texts in variants[name].items()
                if texts - {text} and other not in held.knowledge.symbols
            ]
            is_ranged = name in self._ranged or (self._is_constrained and _UNBACKED.match(name))
            if count == 1 and not of_others and not is_ranged:
                found.add(key)
        return frozenset(found)


class _Read:
    """An expression that was read.

    Attributes:
        value: what is known of it; None where it is refused.
        said: what is wrong with it, and whether that is a note.
    """

    def __init__(self, text: str) -> None:
        self.knowledge = Knowledge()
        self.value: Value | None = None
        self.said: list[tuple[str, bool]] = []
        try:
            read_ = read(text, self.knowledge, DEFAULT).value
        except GrammarError as e:
            may_be_known = self.knowledge.misses and not is_installed()
            self.said.append((f"{e}: {_short(text)}", may_be_known))
        except ExcessError as e:
            self.said.append((str(e), False))
        else:
            self.value = read_


def _misplaced(use: _Use, value: Value, certain: frozenset[Key]) -> Iterable[str]:
    """Yield why a value cannot stand where it does."""
    number = value.number
    if use.role in (_SIZE, _STRIDE, _OFFSET, _INT):
        if use.hint is not None and use.hint[0] != "as_int":
            yield f"the hint of an integer is {use.hint[1]!r}"
            return
        if use.hint is not None and value.is_Integer and int(value) != use.hint[1]:
            yield f"it is {number}, but its hint is {use.hint[1]}"
            return
    if use.role in (_INT, _OTHER):
        return
    what = f"the {use.role} cannot be {_short(use.text)}"
    # Where the value for the example inputs is known, torch may not ask for that of an offset.
    is_asked = use.role != _OFFSET or use.hint is None
    if value.sort in (TRUTH, TUPLE) or value.constant in _NO_INTS:
        if is_asked:
            yield what
    elif number is not None:
        least = -_INTS if use.role == _STRIDE else 0
        is_large = value.is_Float and use.role != _OFFSET and abs(value) > 2 * _INTS
        if is_large or (value.is_Integer and not least <= number < _INTS):
            yield what
    elif use.role == _SIZE and value.key in certain and _is_no_size(value.key):
        yield what
    elif use.role == _SIZE:
        key = next((each for each in (value.free, value.unsure) if each in certain), None)
        if key is not None:
            yield f"the symbol {key[0][:80]!r} has no range"


def _is_no_size(key: Key | None) -> bool:
    known = implied(key[1]) if key is not None else frozenset()
    return not known.isdisjoint(("!extended_real", "extended_negative"))


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
