"""Look at symbolic expressions: what they are, and where they cannot stand."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from fxpress._files.format.expression_limits import ExcessError, GrammarError
from fxpress._files.format.expression_text import read
from fxpress._files.format.limit_values import DEFAULT
from fxpress._tools.inspect.assumptions import implied
from fxpress._tools.inspect.checks_of_operators import is_installed
from fxpress._tools.inspect.expression_knowledge import Knowledge
from fxpress._tools.inspect.expression_values import (
    IMAGINARY,
    INFINITE,
    NOT_A_NUMBER,
    TRUTH,
    TUPLE,
    Key,
    Value,
)
from fxpress._tools.inspect.findings import Found
from fxpress._tools.inspect.uses_of_expressions import INT, OFFSET, OTHER, SIZE, STRIDE, Use, Uses

_INTS = 1 << 63
_MOST_COMPARISONS = 2000  # of values by Max and Min; a load has time for some thousands
_NO_INTS = (IMAGINARY, INFINITE, NOT_A_NUMBER)
_UNBACKED = re.compile(r"(u|zuf)\d+")
_Variants = dict[str, dict[Key, set[str]]]  # name -> symbol -> the expressions that have it


def check_expressions(uses: Uses) -> Found:
    """Yield what a load refuses of the expressions of a program.

    An expression is refused where sympy or the limits of a load refuse it, whatever is not known of
    it here; where its value cannot be a size; and where torch would have to know its sign, which a
    symbol without a range leaves open.
    """
    known = {text: _Read(text) for text in dict.fromkeys(use.text for use in uses.found)}
    each = {(use.text, use.hint) for use in uses.found}
    if sum(known[text].knowledge.comparisons for text, _ in each) > _MOST_COMPARISONS:
        yield "a load may take more time than its limits allow, for Max and Min of many", True
    if uses.is_cut:
        yield "there are too many expressions for a file of this size: not all are read here", True
    variants: _Variants = defaultdict(lambda: defaultdict(set))
    for text, held in known.items():
        for key in held.knowledge.symbols:
            variants[key[0]][key].add(text)
    for use in uses.found:
        held = known[use.text]
        for said, is_note in held.said:
            yield f"{use.place}: {said}", is_note
        if held.value is not None:
            certain = _certain(uses, variants, use.text, held)
            for said in _misplaced(use, held.value, certain):
                yield f"{use.place}: {said}", False


def _certain(uses: Uses, variants: _Variants, text: str, held: _Read) -> frozenset[Key]:
    """Return the symbols of an expression that are certainly what they are there, without a range.

    A load takes an expression for an earlier one that reads the same, whose symbols may have other
    assumptions.
    """
    symbols = held.knowledge.symbols
    found = set()
    for key, count in symbols.items():
        name = key[0]
        is_ranged = name in uses.ranged or (uses.is_constrained and _UNBACKED.match(name))
        is_another = any(
            other not in symbols and texts - {text} for other, texts in variants[name].items()
        )
        if count == 1 and not is_ranged and not is_another and not uses.is_cut:
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
            is_note = self.knowledge.is_of_release and not is_installed()
            self.said.append((f"{e}: {_short(text)}", is_note))
        except ExcessError as e:
            self.said.append((str(e), False))
        else:
            self.value = read_


def _misplaced(use: Use, value: Value, certain: frozenset[Key]) -> Iterable[str]:
    """Yield why a value cannot stand where it does."""
    number = value.number
    if use.role in (SIZE, STRIDE, OFFSET, INT):
        if use.hint is not None and use.hint[0] != "as_int":
            yield f"the hint of an integer is {use.hint[1]!r}"
            return
        if use.hint is not None and value.is_Integer and int(value) != use.hint[1]:
            yield f"it is {number}, but its hint is {use.hint[1]}"
            return
    if use.role in (INT, OTHER):
        return
    what = f"the {use.role} cannot be {_short(use.text)}"
    # Where the value for the example inputs is known, torch may not ask for that of an offset.
    is_asked = use.role != OFFSET or use.hint is None
    if value.sort in (TRUTH, TUPLE) or value.constant in _NO_INTS:
        if is_asked:
            yield what
    elif number is not None:
        least = -_INTS if use.role == STRIDE else 0
        is_large = value.is_Float and use.role != OFFSET and abs(value) > 2 * _INTS
        if is_large or (value.is_Integer and not least <= number < _INTS):
            yield what
    elif use.role == SIZE and value.key in certain and _is_no_size(value.key):
        yield what
    elif use.role == SIZE:
        key = next((each for each in (value.free, value.unsure) if each in certain), None)
        if key is not None:
            yield f"the symbol {key[0][:80]!r} has no range"


def _is_no_size(key: Key | None) -> bool:
    known = implied(key[1]) if key is not None else frozenset()
    return not known.isdisjoint(("!extended_real", "extended_negative"))


def _short(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
