"""Read expressions without sympy: what sympy or a limit of a load certainly refuses is refused."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import Any

from fxpress._files.format.expression_limits import GrammarError, Operand
from fxpress._files.format.torch_facts import expression_facts
from fxpress._tools.inspect.assumptions import assumption, implied, names
from fxpress._tools.inspect.expression_numbers import calculated
from fxpress._tools.inspect.expression_values import (
    ANY,
    CONSTANT,
    IMAGINARY,
    INFINITE,
    IRRATIONAL,
    NOT_A_NUMBER,
    NUMBER,
    TRUTH,
    TUPLE,
    Key,
    Value,
    constant,
    is_int,
    symbol,
    truth,
)
from fxpress._tools.inspect.expression_values import number as of_number

_DOUBLE = 53  # bits of a float whose value is known here
_SHOWN = 120  # characters of a name
_NAMED = {
    **dict.fromkeys(("oo", "zoo", "int_oo"), constant(INFINITE)),
    **{"nan": constant(NOT_A_NUMBER), "I": constant(IMAGINARY)},
    **dict.fromkeys(("pi", "E"), constant(IRRATIONAL)),
    **{"true": truth(True), "True": truth(True), "false": truth(False), "False": truth(False)},
}
_SUMS = ("Add", "Mul")
_COMPARING = ("Max", "Min")
# Functions that give a finite number for finite numbers.
_BOUNDED = frozenset(
    (
        *_SUMS,
        *_COMPARING,
        "%",
        "Abs",
        "FloorDiv",
        "Mod",
        "PythonMod",
        "ceiling",
        "floor",
        "cos",
        "sin",
    )
)
_REMAINDERS = ("%", "Mod", "ModularIndexing", "PythonMod")
_DIVISIONS = ("CleanDiv", "FloorDiv")
_WAVES = ("cos", "sin", "acos")  # whose sign sympy does not find
_ARCS = {"cos": "acos", "sin": "asin", "tan": "atan"}


class Knowledge:
    """An algebra of what is known, for one expression. The methods are those of `Algebra`.

    Attributes:
        symbols: how often the expression names each symbol.
        comparisons: how many pairs of values Max and Min compare.
        is_of_release: it was refused for what the known release of torch does; another one may
            have other functions.
    """

    def __init__(self) -> None:
        self.is_of_release = False
        self.symbols: Counter[Key] = Counter()
        self.comparisons = 0
        self._facts = expression_facts()

    def has(self, function: str) -> bool:
        is_known = function in self._facts["functions"]
        self.is_of_release |= not is_known
        return is_known

    def has_value(self, value: Value) -> bool:
        return value.sort not in (TRUTH, TUPLE)

    def is_expandable(self, value: Value) -> bool:
        return False  # what is not known counts as little as it may

    def integer(self, number: int) -> Value:
        return of_number(Fraction(number))

    def real(self, number: Any, precision: int) -> Value:
        if isinstance(number, str) and number.strip("+-") in ("inf", "nan"):
            return constant(NOT_A_NUMBER if "nan" in number else INFINITE)
        value = number.number if isinstance(number, Value) else number
        if precision != _DOUBLE or value is None:
            return Value(NUMBER, is_finite=True)
        return of_number(float(value))

    def named(self, name: str) -> Operand:
        if name in _NAMED:
            return Operand(_NAMED[name], 1, 0)
        return Operand(self._symbol(name, frozenset()), 1, 1)

    def symbol(self, name: str, assumptions: dict[str, Any]) -> Value:
        given = set()
        is_known = True
        for key, value in assumptions.items():
            if key not in names() or isinstance(value, str) or value.sort not in (TRUTH, ANY):
                raise GrammarError(f"{key}={value!r} is not an assumption")
            if value.truth is None:
                is_known = False
            else:
                given.add(assumption(key, value.truth))
        if not name.isidentifier():
            raise GrammarError(f"{name[:_SHOWN]!r} cannot be the name of a symbol")
        made = self._symbol(name, frozenset(given))
        if not is_known:
            made.key = made.free = made.unsure = None
        return made

    def _symbol(self, name: str, given: frozenset[str]) -> Value:
        known = implied(given)
        made = symbol(name, given)
        assert made.key is not None
        self.symbols[made.key] += 1
        made.is_finite = "infinite" not in known
        made.is_positive = True
        if known.isdisjoint(("extended_nonnegative", "extended_nonpositive")):
            made.free = made.key
        elif known.isdisjoint(("extended_positive", "extended_negative", "zero")):
            made.unsure = made.key
        return made

    def apply(self, function: str, values: list[Value]) -> Value:
        self._check(function, values)
        compared = sum(value.compared for value in values)
        if function in _COMPARING:
            self.comparisons += compared**2
        known = self._calculated(function, values)
        if known is not None:
            return known
        facts = self._facts["functions"][function]
        sorts = {value.sort for value in values}
        made = Value(facts["makes_of_truths" if sorts == {TRUTH} else "makes"])
        if ANY in sorts and made.sort == TRUTH:
            made.sort = ANY
        is_bounded = (function in _BOUNDED and values) or made.sort in (TRUTH, TUPLE)
        made.is_finite = bool(is_bounded) and all(value.is_finite for value in values)
        made.compared = compared
        if function in _SUMS and all(value.is_positive for value in values):
            _vary(made)  # numbers alone were calculated
        _leave_open(made, function, values)
        return made

    def _check(self, function: str, values: list[Value]) -> None:
        said = self._refusal(function, values)
        if said is not None:
            self.is_of_release = True
            raise GrammarError(f"{function} does not take {said}")

    def _refusal(self, function: str, values: list[Value]) -> str | None:
        facts = self._facts["functions"][function]
        counts, count, most = facts["counts"], len(values), self._facts["most"]
        # A function that takes four arguments takes any even number of them, or any number.
        if count not in counts and (count <= most or max(counts) < most - 1):
            return f"{count} arguments"
        sorts = [CONSTANT if _is_no_bit(value) else value.sort for value in values]
        wrong = next((sort for sort in sorts if sort in facts["never"]), None)
        if wrong is not None:
            return f"a {wrong}"
        if all(value.is_finite for value in values):
            if sorts in facts["refuses"]:
                return f"a {' and a '.join(sorts)}"
            if any(count > place and values[place].number == 0 for place in facts["zeros"]):
                return "zero there"
        return None

    def _calculated(self, function: str, values: list[Value]) -> Value | None:
        numbers = [value.number for value in values if value.number is not None]
        truths = [value.truth for value in values if value.truth is not None]
        if len(numbers) == len(values):
            made = calculated(function, numbers)
            if made is not None:
                return made
        if function == "Not" and truths:
            return truth(not truths[0])
        if function in _SUMS and any(value.constant == NOT_A_NUMBER for value in values):
            return constant(NOT_A_NUMBER)
        if function == "Mul" and _is_multiple(values):
            return constant(IRRATIONAL)
        if function == "log" and len(values) == 1 and is_int(values[0], 2):
            return constant(IRRATIONAL)
        if len(values) == 1 and function in (*_SUMS, *_COMPARING):
            return values[0]
        arc = values[0].arc if values else None
        if arc is not None and _ARCS.get(function) == arc[0]:
            return arc[1]
        return None


def _is_no_bit(value: Value) -> bool:
    """Return whether a value is a known number that is no truth value either."""
    return value.number is not None and value.number not in (0, 1)


def _vary(made: Value) -> None:
    """Note that a value is a polynomial without negative coefficients, and no number."""
    made.is_positive = True
    made.is_number = made.is_Rational = made.is_Float = made.is_Integer = False


def _is_multiple(values: list[Value]) -> bool:
    """Return whether values are one irrational number and rational ones, none of which is 0."""
    others = [value for value in values if value.constant != IRRATIONAL]
    return len(others) == len(values) - 1 and all(each.is_Rational and each.p for each in others)


def _leave_open(made: Value, function: str, values: list[Value]) -> None:
    """Note which symbol leaves open the sign of a value, or whether it is 0."""
    if function in _ARCS.values():
        made.arc = (function, values[0])
    first, others = (values[0], values[1:]) if values else (made, [])
    inner = first.free or first.unsure or _plain_key(first)
    if function == "Add":
        made.free = next((value.free for value in values if value.free), None)
    elif function == "Mul":
        varying = [value for value in values if value.number is None and value.constant is None]
        numbers = [value.number for value in values]
        if len(varying) == 1 and 0 not in numbers:
            made.free = varying[0].free
    elif function in _DIVISIONS and is_int(others[0], 2):
        made.free, made.unsure = first.free, inner
    elif function in _REMAINDERS and all(is_int(value, 2) for value in others):
        made.unsure = first.unsure or _plain_key(first)
    elif function == "PowByNatural" and is_int(first, 2):
        made.unsure = others[0].free or others[0].unsure or others[0].key
    elif function == "LShift" and is_int(first, 1):
        made.unsure = others[0].key
    elif function in _WAVES and first.arc is None:
        made.free = inner
    elif function == "Pow":
        base, exponent = values
        if base.key is not None and exponent.is_Integer and abs(exponent) > 1:
            made.is_Pow, made.is_number, made.base, made.exp = True, False, base, exponent


def _plain_key(value: Value) -> Key | None:
    """Return the symbol that a value is, unless a remainder of it may be known."""
    if value.key is None or not implied(value.key[1]).isdisjoint(("zero", "even", "odd")):
        return None
    return value.key
