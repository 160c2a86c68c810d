"""Expressions that are code, or that take long to build, to compare or to print."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from tests.fuzz.hostile.cases import MODEL, add, documents_of, edited, hostile, written
from tests.support.payloads import SINGLE

_S = "Symbol('s{}', positive=True, integer=True)"
_S0 = _S.format(0)


def _call(name: str, *arguments: str) -> str:
    return f"{name}({', '.join(arguments)})"


def _symbols(count: int) -> list[str]:
    return [_S.format(i) for i in range(count)]


def _nested(name: str, depth: int) -> str:
    return f"{name}(" * depth + _S0 + ")" * depth


def _tower(name: str, depth: int, argument: str) -> str:
    text = _S0
    for _ in range(depth):
        text = _call(name, text, argument)
    return text


_SUM = " + ".join(f"s{i}" for i in range(12))
EXPRESSIONS = {
    "code": SINGLE,
    "code-as-an-argument": f"Integer({SINGLE})",
    "code-as-a-name": f"Symbol({SINGLE!r}, integer=True)",
    "code-in-an-assumption": f"Symbol('s0', integer={SINGLE})",
    "lambda": "(lambda: 1)()",
    "attribute": "Symbol.__class__",
    "subscript": "Integer[0]",
    "comprehension": "[s for s in (1,)]",
    "f-string": "f'{s0}'",
    "star": "Add(*[1, 2])",
    "exponent-of-ten-digits": "Float('1.0e9999999999', precision=53)",
    "negative-exponent-of-ten-digits": "Float('1.0e-9999999999', precision=53)",
    "float-with-an-exponent-in-infix": "1e9999999999 + s0",
    "float-of-many-digits": f"Float('{'9' * 60000}', precision=53)",
    "float-of-high-precision": "Float('1.5', precision=1000000000)",
    "float-as-a-power": "Pow(Float('1.0e300'), Integer(64))",
    "float-in-a-floor": "floor(Float('1.0e+1000000', precision=53))",
    "float-modulo": "Mod(Float('1.0e+1000000', precision=53), Integer(7))",
    "float-floor-division": "FloorDiv(Float('1.0e+10000000', precision=53), Integer(3))",
    "float-compared": "Ge(Float('1.0e+10000000', precision=53), Integer(3))",
    "float-to-integer": "TruncToInt(Float('1.0e+10000000', precision=53))",
    "float-rounded": "RoundToInt(Float('1.0e+10000000', precision=53))",
    "sine-of-a-large-float": "sin(Float('1.0e+100000', precision=53))",
    "logarithm-of-a-large-float": "log(Float('1.0e+10000000', precision=53))",
    "power": "Pow(Integer(10), Integer(1000000000))",
    "power-of-powers": "Pow(Pow(Pow(Integer(10), Integer(64)), Integer(64)), Integer(64))",
    "power-of-a-sum": f"Pow({_SUM}, Integer(8))",
    "power-of-a-sum-modulo": f"({_SUM}) ** 8 % s99",
    "product-of-sums": " * ".join([f"({_SUM})"] * 8),
    "product-of-sums-modulo": "Mod(" + " * ".join([f"({_SUM})"] * 8) + ", s99)",
    "product-of-sums-divided": "FloorDiv(" + " * ".join([f"({_SUM})"] * 8) + ", s99)",
    "power-of-two-to-a-sum": f"PowByNatural(Integer(2), {_SUM})",
    "shift": "LShift(Integer(1), Integer(1000000000))",
    "shift-of-shifts": "LShift(LShift(LShift(Integer(1), Integer(64)), Integer(64)), Integer(64))",
    "tower-in-infix": "2**2**2**2**2**2",
    "large-integer": f"Integer({'9' * 4000})",
    "larger-integer": f"Integer({'9' * 60000})",
    "large-integer-in-hexadecimal": f"Integer(0x{'f' * 60000})",
    "product-of-large-integers": " * ".join([str(2**127)] * 1500),
    "rationals": " + ".join(f"Rational(1, {2**61 + i})" for i in range(0, 3000, 2)),
    "factorial": "factorial(Integer(100000000))",
    "exponential": "exp(Mul(Integer(1000000000000), log(Integer(2))))",
    "max-of-many": _call("Max", *_symbols(1000)),
    "max-of-some": _call("Max", *_symbols(32)),
    "max-of-max": "Max(" * 5 + ", ".join(_symbols(30)) + ")" * 5,
    "max-of-sums": _call("Max", *(f"s{i} + s{i + 1} * s{i + 2}" for i in range(31))),
    "max-of-max-of-some": _call(
        "Max", *(_call("Max", *(_S.format(f"{i}x{j}") for j in range(31))) for i in range(31))
    ),
    "min-of-max": _call(
        "Min", *(_call("Max", *(f"s{i} + {j}*s{j}" for j in range(16))) for i in range(16))
    ),
    "max-of-large": _call("Max", *(str(2**127 - i) for i in range(32))),
    "piecewise": _call(
        "Piecewise", *(f"(Integer({i}), Gt({_S0}, Integer({i})))" for i in range(31))
    ),
    "piecewise-of-piecewise": "Piecewise((" * 200 + _S0 + ", true))" * 200,
    "and-of-many": _call("And", *(f"Gt(s{i}, Integer({i}))" for i in range(2000))),
    "or-of-and": _call("Or", *(f"And(Gt(s{i}, 1), Lt(s{i}, 9))" for i in range(500))),
    "and-of-relations": _call("And", *(f"Ne({_S0}, Integer({i}))" for i in range(500))),
    "xor": _call("Xor", *(f"Gt(s{i}, Integer({i}))" for i in range(500))),
    "not-of-many": "Not(" * 500 + "true" + ")" * 500,
    "if-then-else": "ITE(Gt(s0, 1), " * 90 + "true" + ", false)" * 90,
    "add-of-many": _call("Add", *_symbols(1500)),
    "mul-of-many": _call("Mul", *_symbols(1500)),
    "floor-division-tower": _tower("FloorDiv", 80, "Integer(2)"),
    "modulo-tower": _tower("Mod", 60, "Integer(7)"),
    "modular-indexing-tower": "ModularIndexing(" * 60 + _S0 + ", Integer(2), Integer(3))" * 60,
    "modulo-of-sums": f"Mod(({_SUM}) * ({_SUM}) * ({_SUM}), ({_SUM}))",
    "floor-division-of-sums": f"FloorDiv(({_SUM}) * ({_SUM}), ({_SUM}))",
    "floor-division-of-many": _call(
        "FloorDiv",
        _call("Add", *(f"Mul(Integer({i + 2}), s{i})" for i in range(1500))),
        "Integer(2)",
    ),
    "modulo-of-many": _call(
        "Mod", _call("Add", *(f"Mul(Integer({i + 2}), s{i})" for i in range(1500))), "Integer(2)"
    ),
    "common-factors": "FloorDiv(Add({}), Mul({}))".format(
        ", ".join(_call("Mul", *_symbols(i + 1)) for i in range(60)), ", ".join(_symbols(60))
    ),
    "ceiling-tower": "ceiling(" * 80 + f"{_S0} / 3" + ")" * 80,
    "absolute-tower": _nested("Abs", 80),
    "square-roots": "sqrt(" * 60 + _S0 + ")" * 60,
    "root-of-a-large-integer": f"sqrt(Integer({2**127 - 1}))",
    "root-of-a-product": " * ".join(f"sqrt(Integer({2**100 + i}))" for i in range(150)),
    "power-with-a-root": f"Pow(Integer({2**127 - 1}), Rational(1, 61))",
    "sines": "sin(" * 80 + _S0 + ")" * 80,
    "sine-of-many": _call("sin", _call("Add", *_symbols(300))),
    "logarithm-of-a-product": _call("log", _call("Mul", *_symbols(300))),
    "exponential-of-logarithms": _call("exp", _call("Add", *(f"log(s{i})" for i in range(300)))),
    "arcs": "acos(cos(" * 30 + "s0" + "))" * 30,
    "tangent-of-rationals": "tan(pi * Rational(1, 1021))",
    "cosine-of-a-rational": "cos(pi * Rational(1, 997))",
    "relation-of-sums": f"Ge(({_SUM}) ** 8, ({_SUM}) ** 7)",
    "equality-of-sums": f"Eq(({_SUM}) ** 8, ({_SUM}) ** 8 + 1)",
    "equality-of-many": _call("Eq", _call("Add", *_symbols(1200)), _call("Mul", *_symbols(1200))),
    "infinities": "Add(oo, -oo, zoo, nan, int_oo)",
    "division-by-zero": "FloorDiv(s0, Integer(0))",
    "modulo-zero": "Mod(s0, Integer(0))",
    "imaginary": "Mul(I, I, I, s0)",
    "truth": "Add(true, s0)",
    "wrong-kinds": "FloorDiv(true, (1, 2))",
    "tuple": "((((1,),),),)",
    "deep-parentheses": "(" * 5000 + "s0" + ")" * 5000,
    "deep-signs": "-" * 30000 + "s0",
    "deep-calls": "Abs(" * 3000 + "s0" + ")" * 3000,
    "deep-sums": "+".join(["s0"] * 30000),
    "deep-powers": "**".join(["s0"] * 3000),
    "long-name": f"Symbol('{'s' * 60000}', integer=True)",
    "long": "s0 + " * 100000 + "1",
    "text": "'text'",
    "bytes": "b'text'",
    "empty": "",
    "nul": "s0\0",
    "surrogate": "s0\ud800",
    "line": "s0\n+1",
    "walrus": "(s0 := 1)",
    "comparison-chain": "1 < s0 < 2 < 3",
    "names-of-builtins": "Symbol('__import__', integer=True) + Symbol('print')",
    "two-sorts-of-one-symbol": "Symbol('s0', integer=True) + Symbol('s0', positive=True)",
    "contradiction": "Symbol('s0', positive=True, negative=True)",
    "all-assumptions": "Symbol('s0', positive=True, integer=True, even=True, odd=True, prime=True)",
    "complex-assumption": "Symbol('s0', imaginary=True)",
}


def _expressions(value: Any) -> Iterator[dict[str, Any]]:
    """All places of an expression in a JSON value."""
    if isinstance(value, dict):
        if "expr_str" in value:
            yield value
        for each in value.values():
            yield from _expressions(each)
    elif isinstance(value, list):
        for each in value:
            yield from _expressions(each)


def _with_expression(text: str, every: bool = False) -> bytes:
    """A program with an expression as the size of a tensor."""

    def edit(stored: Any) -> None:
        found = list(_expressions(stored["graph_module"]["graph"]))
        for place in found if every else found[:1]:
            place["expr_str"] = text

    return edited("guarded", edit)


for _name, _text in EXPRESSIONS.items():
    add(f"expressions-{_name}", functools.partial(_with_expression, _text), "either", "guarded")
for _name in ("max-of-some", "power-of-a-sum", "common-factors", "min-of-max"):
    _make = functools.partial(_with_expression, EXPRESSIONS[_name], True)
    add(f"expressions-everywhere-{_name}", _make, "either", "guarded")


def _many(make: Any, count: int) -> bytes:
    """Many values with an expression each."""

    def edit(stored: Any) -> None:
        values = stored["graph_module"]["graph"]["sym_int_values"]
        for i in range(count):
            hint = {"as_int": 8}
            values[f"more_{i}"] = {"as_expr": {"expr_str": make(i), "hint": hint}}

    return edited("guarded", edit)


add("expressions-many-sums", functools.partial(_many, lambda i: f"({_SUM}) * {i}", 500), "either")
add(
    "expressions-many-max",
    functools.partial(_many, lambda i: _call("Max", *(f"s{j} + {i}" for j in range(30))), 100),
    "either",
)
add(
    "expressions-many-modulo",
    functools.partial(_many, lambda i: f"Mod(({_SUM}) * {i + 1}, {i + 2})", 500),
    "either",
)


@hostile("refused", "guarded")
def ranges_of_code() -> bytes:
    """The names in the ranges are expressions too."""
    return edited("guarded", lambda s: s["range_constraints"].update({SINGLE: {"min_val": 1}}))


@hostile("either", "guarded")
def ranges_without_a_value() -> bytes:
    ranges = {"min_val": 9, "max_val": 1}
    return edited("guarded", lambda s: s["range_constraints"].update(s77=ranges, s17=ranges))


@hostile("either", "guarded")
def ranges_of_large_numbers() -> bytes:
    ranges = {"min_val": -(2**63), "max_val": 2**63 - 1}
    return edited("guarded", lambda s: s["range_constraints"].update(s77=ranges, s17=ranges))


@hostile("either", "guarded")
def many_ranges() -> bytes:
    more = {f"s{i}": {"min_val": 1, "max_val": 9} for i in range(100, 20100)}
    return edited("guarded", lambda s: s["range_constraints"].update(more))


@hostile("either", "guarded")
def hints_of_large_numbers() -> bytes:
    documents = documents_of("guarded")
    for place in _expressions(documents[MODEL]):
        place["hint"] = {"as_int": 2**63 - 1}
    return written("guarded", documents)


@hostile("either", "guarded")
def hints_of_other_kinds() -> bytes:
    documents = documents_of("guarded")
    for place in _expressions(documents[MODEL]):
        place["hint"] = {"as_float": 1e308}
    return written("guarded", documents)


@hostile("either", "unbacked")
def assertions_of_powers() -> bytes:
    """Facts about a symbol in the nodes, for which sympy needs a long time."""
    text = json.dumps(documents_of("unbacked")[MODEL])
    power = f"Pow({_SUM}, Integer(8))"
    changed = text.replace("Symbol('u0', integer=True)", power)
    return written("unbacked", {MODEL: changed.encode()})
