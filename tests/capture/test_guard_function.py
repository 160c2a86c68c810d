"""`build_guard_function`: the same text as torch's, character for character."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo.guards as torch_guards
from torch import nn

import fxpress
from fxpress import _native
from fxpress._graphs.capture.guard_function import build_guard_function
from tests.support.guards import recorded

COVERED = [
    "a.b ",
    "L['x'] is None",
    'L["x"]',
    'L["it\'s"]',
    "a.b.c.d",
    "f(a, g(b), key=h(c), other=1)",
    "f()",
    "x[0]",
    "x[0, 1]",
    "x[0,]",
    "x[()]",
    "x[(1, (2,))]",
    "[a, b, [c]]",
    "[]",
    "(a, )",
    "((a))",
    "not not a",
    "-a ** -b ** c",
    "(-a) ** b",
    "- -a",
    "~a + +b",
    "a - (b - c) - d",
    "(a - b) - c",
    "a * (b + c) % d // e / f @ g",
    "a << 1 >> 2 & b ^ c | d",
    "a | b ^ c & d << 2",
    "2 <= x.size()[0] <= 10 != y",
    "a is not b and a not in c and not d in e",
    "a == 1 or b == 2 or c == 3 or d == 4 or not e",
    "(a or b) and (c or d) and (e and f) and not g",
    "(a == b) == c",
    "a == (b == c)",
    "(a and b).c",
    "(a + b)[c]",
    "(not a)()",
    "'a'.join(b)",
    "x == 1.5 and y == 0.25 and z == 10.0",
    "True is x.y and None is x.y and x.y is False",
    "match(case.type)",
    "a . b ( c ) [ d ]",
    "a.b+a.b",
    "a<b>c",
    "a<<b",
    "isinstance_(not_, in_, is_)",
]
NOT_COVERED = [
    "a if b else c",
    "lambda x: x.a.b",
    "x[1:2].a",
    "x[...].a",
    "{a.b, c}",
    "{a.b: c}",
    "f(*a.b)",
    "f(**a.b)",
    "f'{a.b}'",
    "b'a' == x.a",
    "'a' 'b' == x.a",
    "'\\n' == x.a",
    "'é' == x.é",
    "'''a''' == x.a",
    "1e5 == x.a",
    "1_000 == x.a",
    "0x10 == x.a",
    "1j == x.a",
    "0.00001 == x.a",
    "1.50 == x.a",
    "1 .real == x.a",
    "True.real == x.a",
    "[i.a for i in x.a]",
    "any(i.a for i in x.a)",
    "(y := x.a)",
    "a.b, c",
    "a.b # why",
    "a.b\n",
    "'alone'",
    "f(a.b,)",
    "f(a.b, \n c)",
    "x.a == " + "(" * 150 + "a" + ")" * 150,
    "+" * 150 + "x.a",
    " + ".join(["x.a"] * 120),
]
NO_EXPRESSIONS = [
    "",
    " a",
    "a b",
    "a.",
    "a.if",
    "a not b",
    "a is",
    "f(a=1, b)",
    "f(a",
    "f(a b)",
    "x[]",
    "x[a",
    "(a",
    "[a b]",
    "'a",
    "01",
    "1a",
    "a.1",
    "a !",
    "if",
    "a if b",
    "not",
    "é(",
    "$",
    "f(None=1)",
    "a..b",
]


def test_texts_are_torchs_one_by_one_and_together() -> None:
    for text in COVERED + NOT_COVERED:
        for parts in ([text], [text, text], [text, "x.a", "L['x']", text]):
            assert build_guard_function(parts, "a, b") == torch_guards.build_guard_function(
                parts, "a, b"
            ), text
    together = COVERED + NOT_COVERED[:-3] + COVERED
    ours = build_guard_function(together, "a")
    assert ours == torch_guards.build_guard_function(together, "a")
    assert "_var9 = " in ours[0]
    compile(ours[1].replace("(y := ", "("), "<guards>", "exec")


def test_what_is_covered() -> None:
    for text in COVERED:
        assert _native.CommonSubexpressions().count(text) is not None, text
    for text in NOT_COVERED:
        assert _native.CommonSubexpressions().count(text) is None, text


def same_outcome(text: str) -> None:
    outcomes: list[Any] = []
    for function in (build_guard_function, torch_guards.build_guard_function):
        try:
            outcomes.append(function(["a.b", text], ""))
        except (SyntaxError, ValueError) as error:
            outcomes.append((type(error), str(error)))
    assert outcomes[0] == outcomes[1]


def test_texts_that_python_refuses() -> None:
    same_outcome("L['\ud800']")
    same_outcome("a\0")
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(640)
    try:
        same_outcome("x.a == " + "1" * 700)
    finally:
        sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("text", NO_EXPRESSIONS)
def test_what_is_no_expression(text: str) -> None:
    same_outcome(text)
    assert _native.CommonSubexpressions().count(text) is None


def test_nothing_to_check() -> None:
    assert build_guard_function([], "") == torch_guards.build_guard_function([], "")


@pytest.mark.parametrize(
    "deep",
    [
        "a" + ".b" * (sys.getrecursionlimit() + 100),
        " + ".join(["L['x'].a"] * 500),
        "- " * 1000 + "a",
        "not " * 1000 + "a.b",
    ],
    ids=lambda text: text[:6],
)
def test_deeper_than_python_goes(deep: str) -> None:
    parts = [deep, "x.y", "x.y"]
    assert build_guard_function(parts, "") == torch_guards.build_guard_function(parts, "")


def test_depths_at_the_limits() -> None:
    for count in range(20, 130, 5):
        text = "f(" + "a ** -" * count + "a)"
        parts = [text, f"[i for i in {text}]", "(" * count + "a.b" + ")" * count, "a.b"]
        assert build_guard_function(parts, "") == torch_guards.build_guard_function(parts, "")
    for depth in (199, 200, 201, 300):  # brackets that Python's tokenizer takes
        same_outcome("(" * depth + "a" + ")" * depth)


def test_long_lists_are_not_deep() -> None:
    text = "f(" + ", ".join(f"a.b[{i}]" for i in range(2000)) + ")"
    parts = [text, text, "f()[" + ", ".join(["a.b"] * 300) + "]"]
    assert build_guard_function(parts, "") == torch_guards.build_guard_function(parts, "")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.norm = nn.BatchNorm1d(4)
        self.sizes = {"a": [1, 2], "b": (3.5, None)}

    def forward(self, x: torch.Tensor, *, scale: float = 1.5) -> torch.Tensor:
        for layer in self.layers:
            x = torch.relu(layer(x))
        if x.shape[0] > self.sizes["a"][1]:
            x = self.norm(x) * scale
        return x.reshape(-1, 2).sum(0)


def _compile(**options: Any) -> Callable[[], None]:
    def run() -> None:
        model = Block()
        compiled = torch.compile(model, backend="eager", **options)
        for size in (4, 6, 8):
            compiled(torch.randn(size, 4))

    return run


@pytest.mark.parametrize("options", [{}, {"dynamic": True}])
def test_guards_of_models(options: dict[str, Any]) -> None:
    calls = recorded(_compile(**options))
    assert calls
    for parts, arguments in calls:
        assert build_guard_function(parts, arguments) == torch_guards.build_guard_function(
            parts, arguments
        )


def test_installed_and_removed() -> None:
    original = torch_guards.build_guard_function
    with fxpress.installed():
        assert torch_guards.build_guard_function is not original
        assert torch_guards.build_guard_function(["a.b", "a.b"], "") == original(["a.b", "a.b"], "")
        _compile()()
    assert torch_guards.build_guard_function is original


def test_the_checks_check() -> None:
    _, whole = build_guard_function(["L['x'].real == 1", "L['x'].real < 3", "L['y'] is None"], "")
    made: dict[str, Any] = {}
    exec(whole, {}, made)
    guard = made["___make_guard_fn"]()
    assert guard({"x": 1, "y": None})
    assert not guard({"x": 2, "y": None})
    assert not guard({"x": 1, "y": 0})
    assert isinstance(ast.parse(whole), ast.Module)
