"""Find out what sympy makes of the calls and symbols of expressions, by trying."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import sympy
from sympy.core.assumptions import _assume_defined, _assume_rules
from sympy.logic.boolalg import BooleanFunction

from fxpress._files.format.expression_limits import Operand, call
from fxpress._files.serde.bounded_functions import CONSTANTS, FUNCTIONS, SympyAlgebra
from fxpress._files.serde.limits import Budget

NUMBER, TRUTH, TUPLE, ANY = "number", "truth", "tuple", "any"
CONSTANT = "number that is known"
_S, _X = sympy.Symbol("s", positive=True, integer=True), sympy.Symbol("x")
_PLAIN = (_S, _X, *map(sympy.Integer, (1, 2, -3)), sympy.Rational(1, 2), sympy.Float(1.5), _S + _X)
_TRUTHS = (sympy.true, sympy.false, _X > 1, (_X > 1) & (_S > 3))
_TUPLES = (sympy.Tuple(), sympy.Tuple(_S, 1), sympy.Tuple(_S, sympy.true), sympy.Tuple(_S, _X > 1))
_KNOWN = (*map(sympy.Integer, (2, 7, -3)), sympy.Rational(1, 2), sympy.Float(1.5))
_FINITE = {
    **{NUMBER: (*_PLAIN, sympy.Integer(0)), CONSTANT: _KNOWN},
    **{TRUTH: _TRUTHS, TUPLE: _TUPLES},
}
_OTHERS = tuple(value for value in CONSTANTS.values() if isinstance(value, sympy.Expr))
_SAMPLES = _FINITE | {NUMBER: (*_FINITE[NUMBER], *_OTHERS)}
_FEW = (_S, _X, sympy.Integer(2), sympy.true, sympy.false, _X > 1, sympy.Tuple(_S, sympy.true))
_MOST = 5  # arguments that are tried; a function that takes so many takes any number
_Call = tuple[tuple[Any, ...], Any]  # arguments, result


def _sort(value: Any) -> str:
    """Return the sort of a value; symbols may stand for truth values in And, Or and their like."""
    if isinstance(value, sympy.Tuple):
        return TUPLE
    if isinstance(value, sympy.Expr):
        return NUMBER
    is_logical = isinstance(value, BooleanFunction)
    return TRUTH if not is_logical or {*map(_sort, value.args)} == {TRUTH} else ANY


def _calls(name: str, arguments: Iterator[tuple[Any, ...]]) -> list[_Call]:
    """Return the calls that a load takes."""
    taken = []
    for values in arguments:
        budget = Budget(None, 1 << 30)
        operands = [Operand(value, 1, 1) for value in values]
        with suppress(Exception):  # sympy raises many kinds
            made = call(name, operands, budget.limits, SympyAlgebra({}, budget)).value
            if isinstance(made, sympy.Basic):
                taken.append((values, made))
    return taken


def _arguments() -> Iterator[tuple[Any, ...]]:
    every = [value for values in _SAMPLES.values() for value in values]
    for count in range(3):
        yield from product(every, repeat=count)
    yield from product(_FEW, repeat=3)
    for count in range(4, _MOST + 1):
        yield from ((value,) * count for value in _FEW)


def _refused(name: str, counts: list[int]) -> list[list[str]]:
    """Return the sorts of one or two finite arguments that a function does not take."""
    return [
        list(sorts)
        for count in (1, 2)
        if count in counts
        for sorts in product(_FINITE, repeat=count)
        if not _calls(name, product(*(_FINITE[sort] for sort in sorts)))
    ]


def _zeros(name: str, counts: list[int]) -> list[int]:
    """Return the places at which a function takes no zero where the others are finite."""
    places = []
    for place in (1, 2):
        count = max((each for each in counts if each <= 3), default=0)
        others = list(product(_PLAIN[:6], repeat=count - 1)) if count > place else []
        zero = ((*each[:place], sympy.Integer(0), *each[place:]) for each in others)
        one = ((*each[:place], sympy.Integer(1), *each[place:]) for each in others)
        if others and _calls(name, one) and not _calls(name, zero):
            places.append(place)
    return places


def _only(sorts: set[str]) -> str:
    return sorts.pop() if len(sorts) == 1 else ANY


def _function(name: str) -> dict[str, Any]:
    taken = _calls(name, _arguments())
    counts = sorted({len(values) for values, _ in taken})
    given = [value for values, _ in taken for value in values]
    seen = {*map(_sort, given), *(CONSTANT for value in given if value in _KNOWN)}
    of_truths = {_sort(made) for values, made in taken if set(map(_sort, values)) == {TRUTH}}
    return {
        "counts": counts,
        "never": sorted({*_SAMPLES} - seen),
        "refuses": _refused(name, counts),
        "makes": _only({_sort(made) for _, made in taken}),
        "makes_of_truths": _only(of_truths),
        "zeros": _zeros(name, counts),
    }


def _assumption(fact: str, value: bool) -> str:
    return fact if value else f"!{fact}"


def expressions() -> dict[str, Any]:
    """Return which calls a load takes, and which assumptions on a symbol follow from others."""
    warnings.simplefilter("ignore")  # sympy warns of what a load takes nevertheless
    return {
        "most": _MOST,
        "functions": {name: _function(name) for name in sorted(FUNCTIONS)},
        "assumptions": sorted(_assume_defined),
        "implies": {
            _assumption(*fact): sorted(_assumption(*each) for each in following)
            for fact, following in sorted(_assume_rules.full_implications.items())
        },
        "rules": sorted(
            [sorted(_assumption(*fact) for fact in given), _assumption(*following)]
            for given, following in _assume_rules.beta_rules
        ),
    }
