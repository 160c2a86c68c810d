"""Texts of sympy's expressions: what they mean is what sympy makes of them."""

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


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Pow(Integer(2))", "takes two arguments"),
        ("Pow(Integer(2), Integer(3), Integer(4))", "takes two arguments"),
        ("Pow(Symbol('s0'), Rational(1, 100))", "a root is too high"),
        ("Pow(sqrt(Integer(2)), Symbol('s0'))", "the base of a power is too large"),
    ],
)
def test_powers_that_are_refused(text: str, why: str) -> None:
    with pytest.raises(SerializeError, match=why):
        parse(text, {})


def test_names_of_what_is_no_expression() -> None:
    with pytest.raises(SerializeError, match="not an expression"):
        parse("a", {"a": object()})
