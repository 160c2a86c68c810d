"""Call functions of sympy only if the cost of the call is bounded.

A call of sympy cannot be interrupted, and some functions are slow even for small arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import sympy

from fxpress._files.serde.limits import Budget, LimitError, Limits
from fxpress._torch import serde as compat

PLACE = "an expression"
_LARGEST_EXPONENT = 64  # the limit for the product of nested exponents, such as 2 * 3 in (x**2)**3
_LARGEST_EXPONENT_OF_SUM = 8  # sympy may multiply out a power of a sum
_LARGEST_ARGUMENT = 1024  # the limit for functions such as exp, whose results grow fast
_MOST_ARGUMENTS = 32  # the limit for functions that compare all pairs of arguments
_HIGHEST_DEGREE = 16  # the limit for polynomials whose roots sympy computes
# The cost of divisions and comparisons is not linear. `Limits.terms` is divided by these numbers:
_DIVIDED = 32  # for divisions
_COMPARED = 8  # for comparisons
# `call` rejects truth values as arguments of these functions; sympy only warns.
_SUMS = ("Add", "Mul", "Pow")
CONSTANTS = {
    name: getattr(sympy, name) for name in ("oo", "zoo", "nan", "pi", "E", "I", "true", "false")
} | {"int_oo": compat.int_oo, "True": sympy.true, "False": sympy.false}

_SYMPY = (
    "Abs Add And Eq Equality Ge GreaterThan Gt ITE Le LessThan Lt Max Min Mul Ne Not Or Piecewise "
    "Rational StrictGreaterThan StrictLessThan Tuple Unequality Xor acos acosh asin asinh atan "
    "atanh ceiling cos cosh exp floor log sin sinh sqrt tan tanh"
)
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in _SYMPY.split()},
    **compat.SYMPY_FUNCTIONS,
    "ExprCondPair": sympy.Tuple,
    "Pow": sympy.Pow,
    "%": sympy.Mod,
}


class ExpressionError(compat.SerializeError):
    """A text is not an expression of the grammar, or the expression is too large."""


class Operand(NamedTuple):
    """A part of an expression, with measures of its size."""

    value: Any  # an object of sympy; a str only as an argument of Symbol and Float
    terms: int  # the number of numbers, symbols and functions in it
    degree: int  # an upper bound of the polynomial degree
    expanded: int = 1  # an upper bound of the number of summands after multiplying out


def most_bits(limits: Limits) -> int:
    """Return the number of bits of the largest integer with `limits.digits` decimal digits."""
    return int(limits.digits * 3.33)


def call(name: str, arguments: list[Operand], budget: Budget) -> Operand:
    """Call a function; ExpressionError for wrong arguments, LimitError for large arguments."""
    limits = budget.limits
    if name not in FUNCTIONS:
        raise ExpressionError(f"{name} is not a function that expressions may call")
    if name in _SUMS:
        for argument in arguments:
            if not isinstance(argument.value, sympy.Expr):
                shown = str(argument.value)[:80]
                raise ExpressionError(f"expected numbers as arguments of {name}, found {shown!r}")
    check = _CHECKS.get(name, _check_comparison)
    if check is not None:
        check(limits, name, arguments)
    expanded = _expanded(name, arguments)
    if expanded > limits.terms:
        raise LimitError("terms", f"{PLACE}: a product of sums")
    budget.check_time(PLACE)
    value = FUNCTIONS[name](*(argument.value for argument in arguments))
    if getattr(value, "is_Rational", False) and not _is_small(value, limits):
        raise LimitError("digits", PLACE)
    if name not in _SUMS:
        # The result may be one of the arguments, which may be a sum: Min(a + b) is a + b.
        sizes = sum(argument.expanded for argument in arguments)
        expanded = sizes if isinstance(value, (sympy.Add, sympy.Mul, sympy.Pow)) else 1
    terms = 1 + sum(argument.terms for argument in arguments)
    return Operand(value, terms, _degree(name, arguments), expanded)


def _is_small(value: Any, limits: Limits) -> bool:
    """Return whether a number is a float, or a rational within the limit of digits."""
    if value.is_Rational:
        bits = max(int(value.p).bit_length(), int(value.q).bit_length())
        return bits <= most_bits(limits)
    return bool(value.is_Float)


def _exponent(base: Any, exponent: Any) -> Any:
    """Return the absolute product of nested exponents, such as 2 * 3 for (x**2)**3."""
    while base.is_Pow:
        if base.exp.is_number:
            exponent = exponent * base.exp
        base = base.base
    return abs(exponent)


def _check_power(limits: Limits, name: str, arguments: list[Operand]) -> None:
    if len(arguments) != 2:
        raise ExpressionError(f"expected two arguments of {name}, found {len(arguments)}")
    base, exponent = (argument.value for argument in arguments)
    if exponent.is_number:
        largest = _LARGEST_EXPONENT_OF_SUM if base.is_Add else _LARGEST_EXPONENT
        if not _is_small(exponent, limits) or _exponent(base, exponent) > largest:
            raise ExpressionError(f"an exponent is too large, expected at most {largest}")
        if exponent.is_Rational and exponent.q > largest:
            raise ExpressionError(f"the degree of a root is too large, expected at most {largest}")
    if base.is_number and not _is_small(base, limits):
        raise ExpressionError(
            f"the base of a power is too large, expected at most {limits.digits} digits"
        )


def _check_number(limits: Limits, name: str, arguments: list[Operand]) -> None:
    """Check the arguments of a function such as exp, which is slow for large numbers."""
    for value, *_ in arguments:
        if value.is_number and (not _is_small(value, limits) or abs(value) > _LARGEST_ARGUMENT):
            raise ExpressionError(
                f"the argument of {name} is too large, expected at most {_LARGEST_ARGUMENT}"
            )
    _check_terms(limits, name, arguments, _COMPARED)


def _check_terms(limits: Limits, name: str, arguments: list[Operand], part: int) -> None:
    terms = sum(argument.terms for argument in arguments)
    degree = max((argument.degree for argument in arguments), default=0)
    if degree > _HIGHEST_DEGREE:
        raise ExpressionError(
            f"an argument of {name} has degree {degree}, expected at most {_HIGHEST_DEGREE}"
        )
    if terms > max(limits.terms // part, 2):
        raise LimitError("terms", f"{PLACE}: {name} of {terms} terms")


def _check_division(limits: Limits, name: str, arguments: list[Operand]) -> None:
    simple = len(arguments) == 2 and arguments[1].value.is_Integer
    _check_terms(limits, name, arguments, _COMPARED if simple else _DIVIDED)


def _check_comparison(limits: Limits, name: str, arguments: list[Operand]) -> None:
    _check_terms(limits, name, arguments, _COMPARED)


def _check_few(limits: Limits, name: str, arguments: list[Operand]) -> None:
    """Check the arguments of a function that compares all pairs of its arguments."""
    if len(arguments) > _MOST_ARGUMENTS:
        raise ExpressionError(
            f"{name} has {len(arguments)} arguments, expected at most {_MOST_ARGUMENTS}"
        )
    # The cost is the number of pairs times the terms of an argument, so the limit on terms is lower
    # for more arguments. Single numbers and symbols are cheap to compare.
    are_compound = any(argument.terms > 1 for argument in arguments)
    part = _COMPARED * max(1, len(arguments) // 2) if are_compound else _COMPARED
    _check_terms(limits, name, arguments, part)


_Check = Callable[[Limits, str, list[Operand]], None]
_LINEAR = "Add And ExprCondPair ITE Mul Not Or Rational Tuple"
_POWERS = "FloatPow LShift Pow PowByNatural"
_OF_NUMBERS = "acos acosh asin asinh atan atanh cos cosh exp log sin sinh sqrt tan tanh"
_OF_FEW = "Max Min Piecewise Xor"
_DIVISIONS = "% CeilDiv CleanDiv FloorDiv IntTrueDiv Mod ModularIndexing PythonMod"
_CHECKS: dict[str, _Check | None] = {  # `_check_comparison` is for unlisted functions
    **dict.fromkeys(_LINEAR.split()),
    **dict.fromkeys(_POWERS.split(), _check_power),
    **dict.fromkeys(_OF_NUMBERS.split(), _check_number),
    **dict.fromkeys(_OF_FEW.split(), _check_few),
    **dict.fromkeys(_DIVISIONS.split(), _check_division),
}


def _degree(name: str, arguments: list[Operand]) -> int:
    if name == "Mul":
        return sum(argument.degree for argument in arguments)
    if name == "Pow" and len(arguments) == 2 and arguments[1].value.is_Integer:
        return arguments[0].degree * abs(int(arguments[1].value))
    return max((argument.degree for argument in arguments), default=0)


def _expanded(name: str, arguments: list[Operand]) -> int:
    if name == "Add":
        return sum(argument.expanded for argument in arguments)
    if name == "Mul":
        return math.prod(argument.expanded for argument in arguments)
    if name == "Pow" and len(arguments) == 2 and arguments[1].value.is_Integer:
        exponent = abs(int(arguments[1].value))
        return math.comb(arguments[0].expanded + exponent - 1, exponent)
    return 1
