"""Texts of expressions at random, and programs with an expression at a place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fxpress._files.format.torch_facts import expression_facts
from tests.fuzz.hostile.cases import edited

SEED = "guarded"  # a frozen program; its sizes are s77 and s17
_ASSUMPTIONS = (
    *("positive=True", "integer=True", "negative=True", "even=True", "zero=True", "prime=True"),
    *("nonnegative=True", "real=False", "finite=False", "imaginary=True", "real=True"),
)
_NAMES = ("s0", "s77", "q", "u3")
_NUMBERS = (
    *("0", "1", "2", "3", "-1", "7", "64", "100", "2000", "1.5", "1e300", "Rational(1, 3)"),
    *("Integer(-5)", "9223372036854775807", "Float('2.0', precision=53)", "s77", "s17", "x"),
    *("Float('1.5', precision=10)", "oo", "nan", "zoo", "int_oo", "I", "pi", "true", "false"),
    *("(1, 2)", "(s0, true)", "Symbol('s77', positive=True, integer=True)"),
)
_OPERATORS = ("+", "-", "*", "/", "//", "%", "**", "<", "==", "&", "|")


@st.composite
def _symbols(draw: st.DrawFn) -> str:
    chosen = draw(st.lists(st.sampled_from(_ASSUMPTIONS), max_size=2, unique=True))
    name = draw(st.sampled_from(_NAMES))
    return f"Symbol({', '.join([repr(name), *chosen])})"


@st.composite
def _calls(draw: st.DrawFn, parts: st.SearchStrategy[str]) -> str:
    functions = expression_facts()["functions"]
    name = draw(st.sampled_from(sorted(functions)))
    counts = functions[name]["counts"]
    count = draw(st.sampled_from(counts) | st.integers(0, 4))
    return f"{name}({', '.join(draw(parts) for _ in range(count))})"


@st.composite
def _infix(draw: st.DrawFn, parts: st.SearchStrategy[str]) -> str:
    return f"({draw(parts)} {draw(st.sampled_from(_OPERATORS))} {draw(parts)})"


def texts() -> st.SearchStrategy[str]:
    """Return texts in the grammar; what they say is often senseless."""
    atoms = st.sampled_from(_NUMBERS) | _symbols()
    return st.recursive(atoms, lambda parts: _calls(parts) | _infix(parts), max_leaves=6)


def with_number(role: str, text: str, hint: Any) -> bytes:
    """Return a program in which a number is an expression.

    Args:
        role: "sizes", "strides" or "storage_offset" of the tensor x, or "int" for the size of y.
        text: the expression.
        hint: the hint as the file has it, or None.
    """
    number = {"as_expr": {"expr_str": text, "hint": hint}}

    def edit(document: Any) -> None:
        graph = document["graph_module"]["graph"]
        if role == "int":
            graph["sym_int_values"]["sym_size_int_3"] = number
        elif role == "storage_offset":
            graph["tensor_values"]["x"][role] = number
        else:
            graph["tensor_values"]["x"][role][0] = number

    return edited(SEED, edit)


def edited_graph(edit: Callable[[Any], None], seed: str = SEED) -> bytes:
    """Return a program whose graph is edited."""
    return edited(seed, lambda document: edit(document["graph_module"]["graph"]))
