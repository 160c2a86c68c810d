"""Symbolic expressions from their text: sympy's `srepr`, and the infix form of older files.

Nothing is evaluated but the constructors in a fixed table, on what the text spells out; torch hands
the text to `sympy.sympify`, which runs it as Python code.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any

import sympy
from sympy.core.assumptions import _assume_defined

from fxpress import _torch_compat_serde as compat

_LONGEST_TEXT = 1 << 16  # characters
_MOST_BITS = 128  # of an integer; those of shapes have 64
_LARGEST_EXPONENT = 64  # of a power, of all powers within each other
_LARGEST_EXPONENT_OF_SUM = 8  # which sympy may multiply out
_LARGEST_ARGUMENT = 1024  # of functions that grow fast
_MOST_ARGUMENTS = 32  # of what compares all of them with each other


class ExpressionError(compat.SerializeError):  # type: ignore[misc]
    """A text that is not an expression of the grammar, or one that is too large."""


def _is_small(value: Any) -> bool:
    """Whether a number is a rational or a float of few digits."""
    if value.is_Rational:
        return max(int(value.p).bit_length(), int(value.q).bit_length()) <= _MOST_BITS
    return bool(value.is_Float)


def _exponent(base: Any, exponent: Any) -> Any:
    """The exponent of a power, times that of the power that is its base."""
    while base.is_Pow:
        if base.exp.is_number:
            exponent = exponent * base.exp
        base = base.base
    return abs(exponent)


def _bounded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function whose second argument is an exponent, or a number of bits."""

    def call(base: Any, exponent: Any) -> Any:
        if exponent.is_number:
            largest = _LARGEST_EXPONENT_OF_SUM if base.is_Add else _LARGEST_EXPONENT
            if not _is_small(exponent) or _exponent(base, exponent) > largest:
                raise ExpressionError("an exponent is too large")
            if exponent.is_Rational and exponent.q > largest:
                raise ExpressionError("a root is too high")
        if base.is_number and not _is_small(base):
            raise ExpressionError("the base of a power is too large")
        return function(base, exponent)

    return call


def _of_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that may be slow for large numbers."""

    def call(value: Any) -> Any:
        if value.is_number and (not _is_small(value) or abs(value) > _LARGEST_ARGUMENT):
            raise ExpressionError("the argument of a function is too large")
        return function(value)

    return call


def _of_few(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that compares all its arguments."""

    def call(*arguments: Any) -> Any:
        if len(arguments) > _MOST_ARGUMENTS:
            raise ExpressionError("a function has too many arguments")
        return function(*arguments)

    return call


_CONSTANTS = {
    name: getattr(sympy, name) for name in ("oo", "zoo", "nan", "pi", "E", "I", "true", "false")
} | {"int_oo": compat.int_oo, "True": sympy.true, "False": sympy.false}

_SYMPY = (
    "Abs Add And Eq Equality Ge GreaterThan Gt ITE Le LessThan Lt Max Min Mul Ne Not Or Piecewise "
    "Rational StrictGreaterThan StrictLessThan Tuple Unequality Xor acos acosh asin asinh atan "
    "atanh ceiling cos cosh exp floor log sin sinh sqrt tan tanh"
)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(sympy, name) for name in _SYMPY.split()},
    **compat.SYMPY_FUNCTIONS,
    "ExprCondPair": sympy.Tuple,
    "Pow": _bounded(sympy.Pow),
}
for _name in ("FloatPow", "LShift", "PowByNatural"):
    _FUNCTIONS[_name] = _bounded(_FUNCTIONS[_name])
_OF_NUMBERS = "acos acosh asin asinh atan atanh cos cosh exp log sin sinh sqrt tan tanh"
for _name in _OF_NUMBERS.split():
    _FUNCTIONS[_name] = _of_small_numbers(_FUNCTIONS[_name])
for _name in ("Max", "Min", "Piecewise"):
    _FUNCTIONS[_name] = _of_few(_FUNCTIONS[_name])

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: sympy.floor(a / b),
    ast.Mod: lambda a, b: a % b,
    ast.Pow: _FUNCTIONS["Pow"],
    ast.BitAnd: sympy.And,
    ast.BitOr: sympy.Or,
    ast.USub: lambda a: -a,
    ast.UAdd: lambda a: a,
    ast.Invert: sympy.Not,
    ast.Eq: sympy.Eq,
    ast.NotEq: sympy.Ne,
    ast.Lt: sympy.Lt,
    ast.LtE: sympy.Le,
    ast.Gt: sympy.Gt,
    ast.GtE: sympy.Ge,
}


def _integer(value: int) -> Any:
    if value.bit_length() > _MOST_BITS:
        raise ExpressionError("an integer is too large")
    return sympy.Integer(value)


class _Builder:
    def __init__(self, symbols: Mapping[str, Any]) -> None:
        self._symbols = symbols

    def build(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=bool(value)):
                return sympy.true if value else sympy.false
            case ast.Constant(value=int(value)):
                return _integer(value)
            case ast.Constant(value=float()):
                return sympy.Float(ast.unparse(node))
            case ast.Name(id=name):
                if name in self._symbols:
                    return self._symbols[name]
                return _CONSTANTS[name] if name in _CONSTANTS else sympy.Symbol(name)
            case ast.UnaryOp(op=op, operand=operand) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.build(operand))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.build(left), self.build(right))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _OPERATORS:
                return _OPERATORS[type(op)](self.build(left), self.build(right))
            case ast.Tuple(elts=items):
                return sympy.Tuple(*map(self.build, items))
            case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords):
                return self._call(name, args, keywords)
        raise ExpressionError(f"{ast.unparse(node)[:80]!r} is not part of an expression")

    def _call(self, name: str, args: list[ast.expr], keywords: list[ast.keyword]) -> Any:
        if name == "Integer":
            return _integer(self._literal(args, keywords, int))
        if name == "Symbol":
            assumptions = {str(k.arg): _constant(k.value) for k in keywords}
            for key, value in assumptions.items():
                if key not in _assume_defined or not isinstance(value, bool):
                    raise ExpressionError(f"{key}={value!r} is not an assumption")
            return sympy.Symbol(self._literal(args, [], str), **assumptions)
        if name == "Float":
            precision = {str(k.arg): _constant(k.value) for k in keywords}
            digits = precision.get("precision", 53)
            if set(precision) > {"precision"} or type(digits) is not int or not 0 < digits <= 1024:
                raise ExpressionError(f"{precision} is not the precision of a Float")
            return sympy.Float(_constant(args[0]) if len(args) == 1 else "?", precision=digits)
        function = _FUNCTIONS.get(name)
        if function is None or keywords:
            raise ExpressionError(f"{name} is not a function of expressions")
        return function(*map(self.build, args))

    @staticmethod
    def _literal(args: list[ast.expr], keywords: list[ast.keyword], kind: type[Any]) -> Any:
        value = _constant(args[0]) if len(args) == 1 and not keywords else None
        if type(value) is not kind:
            raise ExpressionError(f"expected one {kind.__name__}")
        return value


def _constant(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
    raise ExpressionError(f"{ast.unparse(node)[:80]!r} is not a constant")


def parse(text: str, symbols: Mapping[str, Any]) -> Any:
    """The sympy expression that a text spells out.

    Args:
        text: what `sympy.srepr` writes, or infix notation.
        symbols: what names stand for; others become symbols without assumptions.

    Raises:
        ExpressionError: the text is something else, or too large.
    """
    if len(text) > _LONGEST_TEXT:
        raise ExpressionError("the expression is too long")
    try:
        result = _Builder(symbols).build(ast.parse(text.strip(), mode="eval").body)
    except ExpressionError:
        raise
    except Exception as e:  # sympy has many
        raise ExpressionError(f"not an expression: {text[:200]!r}: {e}") from e
    if not isinstance(result, sympy.Basic):
        raise ExpressionError(f"not an expression: {text[:200]!r}")
    return result
