"""Texts of sympy's expressions: the parser gives the same objects as sympy."""

from __future__ import annotations

import pytest
import sympy

from fxpress._files.serde.expressions import parse
from fxpress.serialize import SerializeError


@pytest.mark.parametrize(
    "text",
    [
        "Float('inf', precision=53)",
        "Float('-inf', precision=53)",
        "Float('nan', precision=53)",
        "Float(Integer(3), precision=53)",
        "Float(1.5, precision=20)",
        "Float(1.5)",
        "a // b",
        "-a // 3 % b",
        "a / b - 2",
        "2 ** a ** b",
        "~(a < b)",
        "~true",
        "Symbol('s0', integer=True, positive=True)",
        "Max(Symbol('s0'), Integer(2))",
    ],
)
def test_values(text: str) -> None:
    names = {"a": sympy.Symbol("a"), "b": sympy.Symbol("b"), "true": sympy.true}
    assert parse(text, names) == eval(text, dict(vars(sympy)), names)


@pytest.mark.parametrize(
    "text",
    [
        "a = 1",
        "Symbol('s0', 1 integer=True)",
        "Symbol(integer=True, 's0')",
        "Symbol('s0', integer=True, integer=True)",
        "Float(Symbol('s0'), precision=53)",
        "Float('1.5', precision=53, other=1)",
        "Float('one', precision=53)",
        "Integer(a, b)",
        "'text'",
        "Symbol('s0', integer=2)",
    ],
)
def test_texts_that_are_no_expressions(text: str) -> None:
    with pytest.raises(SerializeError):
        parse(text, {})


HOSTILE = (
    *(
        "Symbol('s0').free_symbols",
        "s0; s1",
        "s0 if s1 else 2",
        "s0[0]",
        "{s0}",
        "s0 = 1",
        "s0 @ s1",
    ),
    *("Add(s0, key=1)", "Symbol('s0', key=True)", "Symbol('s0', integer=1)", "Symbol(s0)"),
    *("Symbol('a b')", "Symbol('')", "Symbol('0s')", "Symbol('s0', 's1')", "Integer('5')"),
    *("exec(s0)", "getattr(s0, s1)", "Function('f')", "Lambda(s0, s0)", "Integral(s0, s0)"),
    *("FloorDiv(s0)", "FloorDiv(s0, s1, s2)", "Mod()", "ModularIndexing(s0, 2)", "Not(s0, s1)"),
    *("floor(s0, 2)", "ITE(true, s0)", "Pow(s0)", "Rational(1, 2, 3, 4)", "Abs()"),
    *("FloorDiv(s0, 0)", "s0 % 0", "CeilDiv(s0, Integer(0))", "PythonMod(7, 3 - 3)"),
    *("Mod(Mul(2, s0), Add(1, -1))", "IntTrueDiv(s0, 0)", "FloatTrueDiv(s0, 0)"),
    *("Add(true, 1)", "s0 < true", "-(s0 < 1)", "Max(s0, s1 < 2)", "sin((s0, s1))"),
    *("And(s0, 7)", "Or(1.5, s0)", "7 & s0", "Abs(Gt(s0, 1))", "(s0, s1) + 1", "Ge((1, 2), s0)"),
    *("Symbol('s0', positive=True, zero=True)", "Symbol('s0', prime=True, negative=True)"),
    *("Symbol('s0', even=True, odd=True)", "Symbol('s0', integer=True, imaginary=True)"),
    *("Symbol('s0', finite=False, real=True)", "Symbol('s0', composite=True, integer=False)"),
    *("Pow(s0, 65)", "Pow(Pow(s0, 9), 9)", "s0 ** (2 ** 8)", "Pow(10 ** 41, s0)", "2 ** pi"),
    *("sin(10 ** 9)", "exp(log(3))", "log(pi)", "sqrt(1025)", "cos(2 * E)", "LShift(1, 100)"),
    *("Float('1.5', precision=0)", "Float('1e500')", "Float('x')", "9" * 41, "1" * 30 + "*10" * 30),
    *("(s0 + s1) ** 9" * 9, "Mod(" + "s0+" * 70 + "1, s0 + s1)"),
    *("Max(" + ", ".join(f"s{i}" for i in range(33)) + ")", "Add(" + "1, " * 2100 + "1)"),
    *("(" * 600 + "s0" + ")" * 600, "-" * 600 + "s0", "Abs(" * 600 + "s0" + ")" * 600),
)


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: text[:40])
def test_hostile_texts(text: str) -> None:
    with pytest.raises(SerializeError):
        parse(text, {})


SOUND = (
    "Symbol('s77', positive=True, integer=True)",
    "Add(Mul(Integer(2), Symbol('s0', positive=True, integer=True)), Integer(-1))",
    "FloorDiv(Add(Symbol('s0', integer=True), Integer(1)), Integer(2))",
    "Mul(Rational(1, 2), Symbol('s0', positive=True, integer=True))",
    "Piecewise(ExprCondPair(Integer(1), Gt(Symbol('u0'), 0)), ExprCondPair(Integer(0), true))",
    "Max(Integer(1), Mul(Symbol('s0'), Symbol('s1')))",
    "Pow(Symbol('s0'), Integer(-2))",
    "Pow(Integer(2), Symbol('s0'))",
    "Eq(Mod(Symbol('s0'), Integer(8)), Integer(0))",
    "Float('0.5', precision=53)",
    "And(Eq(s0, 1), Or(s1 < 2, Not(s0 >= 3)))",
    "IsNonOverlappingAndDenseIndicator(s0, s1, s1, 1, s2, s3)",
    "PowByNatural(s0, 2) + ModularIndexing(s0, 2, 3) - CeilDiv(s0, 2)",
    "ITE(s0 > 1, s1 > 2, false)",
    "IntTrueDiv(s0, 2) * ToFloat(s1) + 0.25",
    "(s0 + s1) ** 8",
    "Identity(s0)",
    "-s0 // 2 % 7",
)


@pytest.mark.parametrize("text", SOUND)
def test_sound_texts(text: str) -> None:
    assert isinstance(parse(text, {}), sympy.Basic)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Pow(Integer(2))", "expected two arguments of Pow"),
        ("Pow(Integer(2), Integer(3), Integer(4))", "expected two arguments of Pow"),
        ("Pow(Symbol('s0'), Rational(1, 100))", "the degree of a root is too large"),
        ("Ge(Pow(Symbol('s0'), 60), Symbol('s1'))", "Ge has degree 60, expected at most 16"),
        (f"Max({', '.join(map(str, range(33)))})", "Max has 33 arguments, expected at most 32"),
        ("Pow(sqrt(Integer(2)), Symbol('s0'))", "the base of a power is too large"),
    ],
)
def test_powers_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(SerializeError, match=why):
        parse(text, {})


def test_names_of_what_is_no_expression() -> None:
    with pytest.raises(SerializeError, match="not an expression"):
        parse("a", {"a": object()})
