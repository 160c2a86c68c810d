"""What is known of expressions without sympy: nothing that a load takes is refused."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import sympy
import torch
from sympy.core.facts import InconsistentAssumptions

from fxpress._files.format.expression_limits import ExcessError, GrammarError
from fxpress._files.format.expression_text import read
from fxpress._files.format.limit_values import DEFAULT
from fxpress._files.format.torch_facts import expression_facts, torch_version
from fxpress._files.serde.bounded_functions import CONSTANTS, FUNCTIONS
from fxpress._files.serde.expressions import parse
from fxpress._tools.inspect.assumptions import assumption, implied, names
from fxpress._tools.inspect.expression_knowledge import _NAMED, Knowledge
from fxpress.serialize import SerializeError
from tests.fuzz.hostile.expressions import EXPRESSIONS

_OF_THIS_TORCH = torch.__version__.startswith(torch_version().rpartition(".")[0])


def refusal(text: str) -> str | None:
    """Return why a text is refused without sympy; None: it may be an expression."""
    try:
        read(text, Knowledge(), DEFAULT)
    except (GrammarError, ExcessError) as e:
        return str(e)
    return None


# Those that sympy calculates are not among them.
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
    assert refusal(text) is not None


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
    parse(text, {})
    assert refusal(text) is None


@pytest.mark.slow("some texts take a load seconds")
@pytest.mark.parametrize("name", sorted(EXPRESSIONS))
def test_texts_of_the_hostile_files(name: str) -> None:
    """What is refused here is refused there. Loads of other texts may take too much time."""
    text = EXPRESSIONS[name]
    if refusal(text) is not None:
        with pytest.raises(SerializeError):
            parse(text, {})


def test_constants_and_functions_are_those_of_a_load() -> None:
    assert set(_NAMED) == set(CONSTANTS)
    if _OF_THIS_TORCH:
        assert set(expression_facts()["functions"]) == set(FUNCTIONS)


@pytest.mark.slow("each function is tried with many arguments")
@pytest.mark.filterwarnings("ignore")
def test_facts_are_those_of_this_torch() -> None:
    if not _OF_THIS_TORCH:
        return
    path = Path(__file__).parents[2] / "tools" / "expression_facts.py"
    spec = importlib.util.spec_from_file_location("expression_facts", path)
    assert spec is not None
    assert spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert tool.expressions() == expression_facts()


@pytest.mark.slow("1,900 symbols")
def test_assumptions_are_those_of_sympy() -> None:
    facts = [(name, value) for name in names() for value in (True, False)]
    for i, first in enumerate(facts):
        for second in facts[: i + 1]:
            given = dict([second, first])
            texts = frozenset(assumption(*fact) for fact in given.items())
            try:
                symbol = sympy.Symbol("s", **given)
            except InconsistentAssumptions:
                with pytest.raises(GrammarError, match="contradict"):
                    implied(texts)
            else:
                for text in implied(texts):
                    assert getattr(symbol, f"is_{text.lstrip('!')}") is not text.startswith("!")
