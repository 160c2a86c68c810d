"""Calls of functions whose arguments are known numbers, as sympy calculates them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction

from fxpress._tools.inspect.expression_values import INFINITE, Number, Value, constant, number

_BITS = 63  # torch's powers of integers are infinite from here on
_NEAR_A_LIMIT = (1000, 1050)  # sympy rounds floats in its own way


def calculated(function: str, values: Sequence[Number]) -> Value | None:
    """Return the value of a function of numbers; None where sympy may make another of it."""
    if all(isinstance(value, Fraction) for value in values):
        exact = _EXACT.get(function)
        return exact([Fraction(value) for value in values]) if exact is not None else None
    made = None
    try:
        if function == "Mul":
            made = math.prod(map(float, values))
        elif function == "Pow" and isinstance(values[1], Fraction) and values[1].denominator == 1:
            made = float(values[0]) ** int(values[1])
    except OverflowError:
        made = math.inf
    except ZeroDivisionError:
        return None
    if made is None or math.isnan(made) or _NEAR_A_LIMIT[0] < abs(made) < _NEAR_A_LIMIT[1]:
        return None
    return number(made)


def _power(values: list[Fraction]) -> Value | None:
    base, exponent = values
    if exponent.denominator != 1:
        return None
    if base == 0 and exponent < 0:
        return constant(INFINITE)
    return number(base ** int(exponent))


def _rational(values: list[Fraction]) -> Value | None:
    if len(values) == 1:
        return number(values[0])
    if len(values) != 2 or values[1] == 0 or any(value.denominator != 1 for value in values):
        return None
    return number(values[0] / values[1])


def _floor_division(values: list[Fraction]) -> Value | None:
    if values[1] == 0 or any(value.denominator != 1 for value in values):
        return None
    return number(Fraction(values[0] // values[1]))


def _natural_power(values: list[Fraction]) -> Value | None:
    base, exponent = values
    if base.denominator != 1 or exponent.denominator != 1 or base < 1 or exponent < 1:
        return None
    made = base ** int(exponent)
    return number(made) if made < 1 << _BITS else constant(INFINITE)


def _shift(values: list[Fraction]) -> Value | None:
    base, shift = values
    return _natural_power([Fraction(2), shift]) if base == 1 else None


_EXACT: dict[str, Callable[[list[Fraction]], Value | None]] = {
    "Add": lambda values: number(sum(values, Fraction(0))),
    "Mul": lambda values: number(math.prod(values, start=Fraction(1))),
    "Max": lambda values: number(max(values)) if values else None,
    "Min": lambda values: number(min(values)) if values else None,
    "Abs": lambda values: number(abs(values[0])),
    "floor": lambda values: number(Fraction(math.floor(values[0]))),
    "ceiling": lambda values: number(Fraction(math.ceil(values[0]))),
    "Pow": _power,
    "Rational": _rational,
    "FloorDiv": _floor_division,
    "PowByNatural": _natural_power,
    "LShift": _shift,
}
