"""Parse the text of an expression: sympy's `srepr`, or the infix form in older files.

torch passes the text to `sympy.sympify`, which runs it as Python code. This parser calls only the
functions in `FUNCTIONS` and a few constructors. It has explicit stacks instead of recursion, so
deep nesting does not exhaust Python's stack.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sympy
from sympy.core.assumptions import _assume_defined

from fxpress._base.errors import is_about_input, printable_error
from fxpress._files.serde import bounded_functions, gate
from fxpress._files.serde.bounded_functions import PLACE, ExpressionError, Operand
from fxpress._files.serde.limits import Budget, LimitError

_CHARACTERS_OF_TERM = 64  # enough for Symbol('s77', positive=True, integer=True)
_LARGEST_EXPONENT = 400  # the largest decimal exponent of a float; 308 is the largest with 64 bits
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+)
    | (?P<integer>\d+)
    | (?P<name>[^\W\d]\w*)
    | (?P<text>'[^'\\\n]*'|"[^"\\\n]*")
    | (?P<operator>\*\*|//|<=|>=|==|!=|[-+*/%&|~<>(),=])
    )""",
    re.VERBOSE,
)
_FLOAT = re.compile(r"([+-]?)(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?")
_MINUS_ONE = Operand(sympy.Integer(-1), 1, 0)

# Binary operator -> precedence.
_COMPARISON = 1
_BINARY = {
    **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _COMPARISON),
    **{"|": 2, "&": 3, "+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "**": 8},
}
_UNARY = 7  # the precedence of unary operators: between products and powers
_NAMES = {  # binary operator -> function
    **{"==": "Eq", "!=": "Ne", "<": "Lt", "<=": "Le", ">": "Gt", ">=": "Ge"},
    **{"|": "Or", "&": "And", "+": "Add", "*": "Mul", "**": "Pow", "%": "%"},
}


class _Frame:
    """The parser's state inside a bracket, and the function whose arguments are in the bracket."""

    def __init__(self, function: str | None) -> None:
        self.function = function
        self.done: list[Operand] = []  # the arguments that were read
        self.keywords: dict[str, Operand] = {}
        self.keyword: str | None = None  # the keyword of the current argument
        self.operands: list[Operand] = []
        self.operators: list[tuple[str, int]] = []  # (operator, precedence)
        self.has_comma = False


class _Reader:
    def __init__(self, symbols: Mapping[str, Any], budget: Budget) -> None:
        self._symbols = symbols
        self._budget = budget
        self._limits = budget.limits
        self._frames = [_Frame(None)]
        self._terms = 0

    def read(self, text: str) -> Operand:
        tokens = self._tokens(text)
        at = 0
        is_operand = False  # whether the last token ended an operand
        while at < len(tokens):
            kind, token = tokens[at]
            following = tokens[at + 1][1] if at + 1 < len(tokens) else ""
            at += 1
            if kind != "operator":
                if is_operand:
                    raise ExpressionError(f"an operator is missing before {token[:40]!r}")
                is_operand = self._value(kind, token, following)
                at += not is_operand  # skip the bracket of a function, or the = of a keyword
            else:
                is_operand = self._operator(token, is_operand)
        if len(self._frames) != 1:
            raise ExpressionError("a bracket is not closed")
        return self._close(self._frames[0], is_operand)

    def _tokens(self, text: str) -> list[tuple[str, str]]:
        tokens: list[tuple[str, str]] = []
        at = 0
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None or found.lastgroup is None:
                raise ExpressionError(f"{text[at : at + 40]!r} is not part of an expression")
            tokens.append((found.lastgroup, found.group(found.lastgroup)))
            at = found.end()
        return tokens

    def _count(self) -> None:
        self._terms += 1
        if self._terms > self._limits.terms:
            raise LimitError("terms", PLACE)

    def _value(self, kind: str, token: str, following: str) -> bool:
        """Read a name, number or text; return False if the following token was read, too."""
        frame = self._frames[-1]
        if kind == "name" and following == "(":
            self._count()
            self._open(_Frame(token))
            return False
        if kind == "name" and following == "=":
            if frame.function is None or frame.keyword or frame.operands or frame.operators:
                raise ExpressionError(f"unexpected keyword {token!r}")
            frame.keyword = token
            return False
        self._count()
        frame.operands.append(self._atom(kind, token))
        return True

    def _open(self, frame: _Frame) -> None:
        if len(self._frames) > self._limits.depth:
            raise LimitError("depth", PLACE)
        self._frames.append(frame)

    def _atom(self, kind: str, token: str) -> Operand:
        if kind == "integer":
            return Operand(self._integer(token), 1, 0)
        if kind == "float":
            return Operand(self._float(token, 53), 1, 0)
        if kind == "text":
            return Operand(token[1:-1], 1, 0)
        if token in self._symbols:
            return Operand(self._symbols[token], 1, 1)
        if token in bounded_functions.CONSTANTS:
            return Operand(bounded_functions.CONSTANTS[token], 1, 0)
        return Operand(sympy.Symbol(token), 1, 1)

    def _integer(self, digits: str) -> Any:
        if len(digits) > self._limits.digits:
            raise LimitError("digits", f"{PLACE}: an integer of {len(digits)} digits")
        return sympy.Integer(int(digits))

    def _float(self, text: Any, precision: int) -> Any:
        found = _FLOAT.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            if text in ("inf", "-inf", "+inf", "nan"):
                return sympy.Float(text, precision=precision)
            raise ExpressionError(f"{str(text)[:80]!r} is not a float")
        _, before, after, exponent = found.groups()
        most_digits = precision // 3 + 3  # digits of a float of `precision` bits in its `srepr`
        if len(before) + len(after) > max(self._limits.digits, most_digits):
            raise LimitError("digits", f"{PLACE}: a float of {len(before + after)} digits")
        if len(exponent or "") > 6 or abs(int(exponent or 0)) > _LARGEST_EXPONENT:
            raise ExpressionError(f"the exponent of {text!r} is too large")
        return sympy.Float(text, precision=precision)

    def _operator(self, token: str, is_operand: bool) -> bool:
        """Read an operator or bracket; return whether an operand ends with it."""
        frame = self._frames[-1]
        if token == "(":
            if is_operand:
                raise ExpressionError("an operator is missing before a bracket")
            self._count()
            self._open(_Frame(None))
            return False
        if token == ")":
            if len(self._frames) == 1:
                raise ExpressionError("a closing bracket has no opening bracket")
            self._frames.pop()
            self._frames[-1].operands.append(self._close(frame, is_operand))
            return True
        if token == ",":
            if not is_operand:
                raise ExpressionError("an argument is missing")
            self._end_argument(frame)
            frame.has_comma = True
            return False
        if is_operand and token in _BINARY:
            self._binary(frame, token)
        elif not is_operand and token in "+-~":
            if len(frame.operators) > self._limits.depth:
                raise LimitError("depth", PLACE)
            frame.operators.append(("unary" + token, _UNARY))
        else:
            raise ExpressionError(f"unexpected {token!r}")
        return False

    def _binary(self, frame: _Frame, token: str) -> None:
        binds = _BINARY[token]
        is_power = token == "**"  # powers are right-associative
        while frame.operators and frame.operators[-1][1] >= binds + is_power:
            if binds == _COMPARISON == frame.operators[-1][1]:
                raise ExpressionError(f"expected one comparison, found another before {token!r}")
            self._apply(frame)
        frame.operators.append((token, binds))

    def _apply(self, frame: _Frame) -> None:
        """Replace the last operands of a frame by the result of its last operator."""
        token, _ = frame.operators.pop()
        right = _numeric(frame.operands.pop())
        if token.startswith("unary"):
            made = right
            if token == "unary-":
                made = self._call("Mul", _MINUS_ONE, right)
            elif token == "unary~":
                made = self._call("Not", right)
        else:
            left = _numeric(frame.operands.pop())
            if token == "-":
                made = self._call("Add", left, self._call("Mul", _MINUS_ONE, right))
            elif token in ("/", "//"):
                made = self._call("Mul", left, self._call("Pow", right, _MINUS_ONE))
                if token == "//":
                    made = self._call("floor", made)
            else:
                made = self._call(_NAMES[token], left, right)
        frame.operands.append(made)

    def _call(self, name: str, *arguments: Operand) -> Operand:
        return bounded_functions.call(name, list(arguments), self._budget)

    def _end_argument(self, frame: _Frame) -> None:
        while frame.operators:
            self._apply(frame)
        (made,) = frame.operands
        frame.operands = []
        if frame.keyword is None:
            if frame.keywords:
                raise ExpressionError("an argument comes after keywords")
            frame.done.append(made)
        else:
            if frame.keyword in frame.keywords:
                raise ExpressionError(f"duplicate keyword {frame.keyword!r}")
            frame.keywords[frame.keyword] = made
            frame.keyword = None

    def _close(self, frame: _Frame, is_operand: bool) -> Operand:
        """Return the value of a frame whose closing bracket, or the end of the text, was read."""
        if is_operand:
            self._end_argument(frame)
        elif frame.operators or frame.keyword or (not frame.has_comma and frame.function is None):
            raise ExpressionError("an operand is missing")
        if frame.function is not None:
            return self._function(frame.function, frame.done, frame.keywords)
        if frame.has_comma:
            return self._call("Tuple", *map(_numeric, frame.done))
        return _numeric(frame.done[0])

    def _function(self, name: str, args: list[Operand], keywords: dict[str, Operand]) -> Operand:
        if name == "Symbol":
            if len(args) != 1 or not isinstance(args[0].value, str):
                raise ExpressionError("expected a name as the argument of Symbol")
            return Operand(_symbol(args[0].value, keywords), 1, 1)
        if name == "Float":
            return Operand(self._precise(args, keywords), 1, 0)
        if keywords:
            raise ExpressionError(f"{name} does not accept keywords, found {[*keywords][:3]}")
        if name == "Integer":
            if len(args) != 1 or _is_not_integer(args[0].value):
                raise ExpressionError("expected one integer as the argument of Integer")
            return args[0]
        return self._call(name, *map(_numeric, args))

    def _precise(self, args: list[Operand], keywords: dict[str, Operand]) -> Any:
        """Return a Float from its arguments: a number or its text, and the precision in bits."""
        bits = keywords.pop("precision", Operand(sympy.Integer(53), 1, 0)).value
        if keywords or len(args) != 1 or _is_not_integer(bits):
            raise ExpressionError(
                "expected a number or its text, and an integer precision, as arguments of Float"
            )
        precision = int(bits)
        if not 0 < precision <= max(53, bounded_functions.most_bits(self._limits)):
            raise LimitError("digits", f"{PLACE}: a Float of {precision} bits")
        value = args[0].value
        if isinstance(value, str):
            return self._float(value, precision)
        if not (value.is_Integer or value.is_Float):
            raise ExpressionError("expected a number as the argument of Float")
        return sympy.Float(value, precision=precision)


def _numeric(operand: Operand) -> Operand:
    """Return the operand; ExpressionError if it is a text."""
    if isinstance(operand.value, str):
        raise ExpressionError(f"the text {operand.value[:40]!r} is not a number")
    return operand


def _is_not_integer(value: Any) -> bool:
    return isinstance(value, str) or not value.is_Integer


def _symbol(name: str, keywords: Mapping[str, Operand]) -> Any:
    """Return a symbol with assumptions."""
    assumptions = {}
    for key, (value, *_) in keywords.items():
        if key not in _assume_defined or value not in (sympy.true, sympy.false):
            raise ExpressionError(
                f"expected an assumption such as positive=True, found {key}={value!r}"
            )
        assumptions[key] = bool(value)
    gate.check("Symbol", name, "a symbol", ExpressionError)
    return sympy.Symbol(name, **assumptions)


def parse(text: str, symbols: Mapping[str, Any], budget: Budget | None = None) -> Any:
    """Return the sympy expression of a text, or raise ExpressionError or LimitError.

    `symbols` maps names to expressions; other names become symbols without assumptions.
    """
    budget = Budget(None, 0) if budget is None else budget
    if len(text) > budget.limits.terms * _CHARACTERS_OF_TERM:
        raise LimitError("terms", f"{PLACE} of {len(text)} characters")
    try:
        with budget.symbolic:
            result = _Reader(symbols, budget).read(text.strip()).value
    except LimitError:
        raise
    except ExpressionError as e:
        raise ExpressionError(f"expression {text[:200]!r}: {e}") from None
    except Exception as e:  # sympy raises various errors
        if not is_about_input(e):
            raise
        raise ExpressionError(f"not an expression: {text[:200]!r}: {e}") from printable_error(e)
    if not isinstance(result, sympy.Basic):
        raise ExpressionError(f"not an expression: {text[:200]!r}")
    return result
