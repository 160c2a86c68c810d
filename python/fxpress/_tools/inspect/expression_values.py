"""Values of expressions as they are known without sympy."""

from __future__ import annotations

from fractions import Fraction
from typing import TypeAlias

NUMBER, TRUTH, TUPLE, ANY = "number", "truth", "tuple", "any"  # sorts
CONSTANT = "number that is known"  # a sort of arguments in `torch.json`
INFINITE, NOT_A_NUMBER, IMAGINARY, IRRATIONAL = "infinite", "nan", "imaginary", "irrational"
Key = tuple[str, frozenset[str]]  # the name and the assumptions of a symbol
Number: TypeAlias = Fraction | float


class Value:
    """What is known of a value. Attributes that sympy's objects have are as there; None: unknown.

    Attributes:
        sort: "number", "truth", "tuple", or "any" where it is not known.
        number: its value, where that is a rational or a float.
        constant: what it is, where it is another number that is known.
        truth: its value, where that is a truth value that is known.
        key: the symbol that it is.
        is_finite: no part of it can be infinite or not a number.
        free: a symbol that leaves the sign open, whatever sympy concludes.
        unsure: a symbol that leaves open whether the value is 0.
        is_positive: it is a polynomial of symbols without negative coefficients, or such a number.
        arc: the inverse function that it is, and its argument.
        compared: how many values its functions Max and Min compare.
    """

    is_number: bool | None = None
    is_Rational: bool | None = None  # noqa: N815
    is_Float: bool | None = None  # noqa: N815
    is_Integer: bool | None = None  # noqa: N815
    is_Pow: bool | None = None  # noqa: N815
    is_Add: bool | None = None  # noqa: N815
    base: Value
    exp: Value
    number: Number | None = None
    constant: str | None = None
    truth: bool | None = None
    key: Key | None = None
    free: Key | None = None
    unsure: Key | None = None
    arc: tuple[str, Value] | None = None
    compared: int = 1
    is_positive: bool = False

    def __init__(self, sort: str, is_finite: bool = False) -> None:
        self.sort = sort
        self.is_finite = is_finite

    @property
    def p(self) -> int:
        assert isinstance(self.number, Fraction)
        return self.number.numerator

    @property
    def q(self) -> int:
        assert isinstance(self.number, Fraction)
        return self.number.denominator

    def __int__(self) -> int:
        return self.p

    def __abs__(self) -> Number:
        assert self.number is not None
        return -self.number if self.number < 0 else self.number

    def __mul__(self, other: Value) -> Value:
        assert self.number is not None
        assert other.number is not None
        return number(self.number * other.number)

    def __repr__(self) -> str:
        return f"a {self.sort}"


def number(value: Number) -> Value:
    """Return a rational, or a float."""
    made = Value(NUMBER, is_finite=True)
    made.number = value
    made.is_number, made.is_Pow, made.is_Add = True, False, False
    made.is_Rational = isinstance(value, Fraction)
    made.is_Float = not made.is_Rational
    made.is_positive = isinstance(value, Fraction) and value > 0
    made.is_Integer = isinstance(value, Fraction) and value.denominator == 1
    return made


def constant(kind: str) -> Value:
    """Return a number that is neither a rational nor a float."""
    made = Value(NUMBER, is_finite=kind in (IMAGINARY, IRRATIONAL))
    made.constant, made.is_number = kind, True
    made.is_Rational = made.is_Float = made.is_Integer = made.is_Pow = made.is_Add = False
    return made


def truth(value: bool) -> Value:
    """Return a truth value."""
    made = Value(TRUTH, is_finite=True)
    made.truth = value
    return made


def symbol(name: str, assumptions: frozenset[str]) -> Value:
    """Return a symbol, with what follows from its assumptions."""
    made = Value(NUMBER, is_finite=True)
    made.key = (name, assumptions)
    made.is_number = made.is_Rational = made.is_Float = made.is_Integer = False
    made.is_Pow = made.is_Add = False
    return made


def is_int(value: Value, least: int) -> bool:
    """Return whether a value is known to be an integer of at least `least`."""
    return bool(value.is_Integer) and int(value) >= least
