"""The algebra of sympy's objects: the functions, constants and symbols of expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy.core.assumptions import _assume_defined

from fxpress._files.format.expression_limits import PLACE, GrammarError, Operand
from fxpress._files.serde import gate
from fxpress._files.serde.limits import Budget
from fxpress._torch import serde as compat

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


class SympyAlgebra:
    """Make sympy's objects, for one expression. The methods are those of `Algebra`."""

    def __init__(self, symbols: Mapping[str, Any], budget: Budget) -> None:
        self._symbols = symbols
        self._budget = budget

    def has(self, function: str) -> bool:
        return function in FUNCTIONS

    def apply(self, function: str, values: list[Any]) -> Any:
        self._budget.check_time(PLACE)
        return FUNCTIONS[function](*values)

    def has_value(self, value: Any) -> bool:
        return isinstance(value, sympy.Expr)

    def is_expandable(self, value: Any) -> bool:
        return isinstance(value, (sympy.Add, sympy.Mul, sympy.Pow))

    def integer(self, number: int) -> Any:
        return sympy.Integer(number)

    def real(self, number: Any, precision: int) -> Any:
        return sympy.Float(number, precision=precision)

    def named(self, name: str) -> Operand:
        if name in self._symbols:
            return Operand(self._symbols[name], 1, 1)
        if name in CONSTANTS:
            return Operand(CONSTANTS[name], 1, 0)
        return Operand(sympy.Symbol(name), 1, 1)

    def symbol(self, name: str, assumptions: dict[str, Any]) -> Any:
        read = {}
        for key, value in assumptions.items():
            if key not in _assume_defined or value not in (sympy.true, sympy.false):
                raise GrammarError(f"{key}={value!r} is not an assumption")
            read[key] = bool(value)
        gate.check("Symbol", name, "a symbol", GrammarError)
        return sympy.Symbol(name, **read)
