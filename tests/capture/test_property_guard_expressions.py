"""Texts of guards from generated expressions, against torch's."""

from __future__ import annotations

import ast

from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.guards import build_guard_function as torchs

from fxpress._graphs.capture.guard_function import build_guard_function

names = st.sampled_from(["a", "L", "_x1", "not_"])
constants = st.sampled_from(
    ["0", "12", "1.5", "0.001", "'k'", '"it\'s"', "None", "True", "1e9", "'\\t'", "b''", "..."]
)


def combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    def with_operator(operators: list[str]) -> st.SearchStrategy[str]:
        return st.builds("{} {} {}".format, inner, st.sampled_from(operators), inner)

    several = st.lists(inner, max_size=3).map(", ".join)
    return st.one_of(
        inner.map("({})".format),
        st.builds("({}).{}".format, inner, names),
        st.builds("{}.{}".format, inner, names),
        st.builds("({})({})".format, inner, several),
        st.builds("{}({}, k={})".format, names, inner, inner),
        st.builds("{}[{}]".format, names, inner),
        st.builds("{}[{}, {}]".format, names, inner, inner),
        several.map("[{}]".format),
        st.builds("({}, {})".format, inner, several),
        st.builds("{}{}".format, st.sampled_from(["not ", "-", "~", "+", "- "]), inner),
        with_operator(["+", "-", "*", "/", "//", "%", "**", "@", "<<", ">>", "&", "|", "^"]),
        with_operator(["==", "!=", "<", "<=", ">", ">=", "is", "is not", "in", "not in"]),
        with_operator(["and", "or"]),
        st.builds("{} if {} else {}".format, inner, inner, inner),
    )


expressions = st.recursive(st.one_of(names, constants), combined, max_leaves=12)


def is_expression(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


@given(st.lists(expressions.filter(is_expression), min_size=1, max_size=6), st.data())
def test_texts_are_torchs(texts: list[str], data: st.DataObject) -> None:
    parts = texts + data.draw(st.lists(st.sampled_from(texts), max_size=6))
    assert build_guard_function(parts, "x") == torchs(parts, "x")


@given(st.text("aL.[](),'\"=<>!+-*/ 10not is_\n#:{}", max_size=20))
def test_any_text(text: str) -> None:
    outcomes: list[object] = []
    for function in (build_guard_function, torchs):
        try:
            outcomes.append(function([text, text], ""))
        except (SyntaxError, ValueError, MemoryError) as error:
            outcomes.append(type(error))
    assert outcomes[0] == outcomes[1]
