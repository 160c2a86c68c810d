"""Guards: a text that passes the gate is a condition in Python's grammar, and is fast."""

from __future__ import annotations

import ast
import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

from fxpress import _native
from fxpress._files.serde.guards import check_arithmetic
from fxpress.serialize import SerializeError
from tests.fuzz.hostile.strings import GUARDS_BY_NAME
from tests.fuzz.targets import timed
from tests.fuzz.targets.mutators import Pool, of_tokens

LONGEST = 1.0  # second: of one guard of a few hundred characters
SEEDS = (
    "(L['x'].size()[0] % 3) == 0",
    "(L['y'].size()[0] // 2) <= L['x'].size()[0]",
    "L['x'].stride()[0] == 2*L['x'].size()[1] and L['y'].storage_offset() != 1",
    "not (L['args'][0]['a b'].size()[0] < 9 or torch.sym_max(L['x'].size()[0], 3) > 4)",
    "math.floor(L['x'].size()[0] / 2.5e0) == 3 if L['flag'] else L['mode'] == 'sum'",
    "2 ** 3 + (1 << 4) - -5 == ~L['x'].item() | 7 & 3 ^ 1",
    "L['x'].wide.high[0] == None",
    "L['x'].size()[0] // (2 ** L['n']) > 1 + L['n'] ** (2*L['x'].size()[1] - 1)",
    "2 ** math.ceil(math.log2(torch.sym_float(L['n']))) < torch.sym_float(L['n']) ** -0.5",
    *(text for text in GUARDS_BY_NAME.values() if len(text) < 300),
)
_WORDS = r"""
    () [] + - * / // % ** << >> & | ^ ~ == != < <= > >= , . ' " \ # : = ; @ { } ! ` $ ?
    L['x'] .size() .stride()[0] .item() .numel() [0] [-1] ['a'] and or not if else in is
    True False None inf nan 0 1 64 65 1e9 1e309 0x1 0b1 1_0 1j 9999999999999999999999 -1
    math.floor math.exp math.inf math.pi torch.sym_max torch.sym_float int float abs max
    min round bool lambda await yield print __import__ __class__ f'' b'' r'' := -> ...
"""
_OTHERS = ("\n", " ", "\t", "\r", "\f", "\0", "\u2028", "\uff58", "\\\n")
_TOKENS = (*_WORDS.split(), *_OTHERS, "64+" * 50, "(" * 90, ")" * 90)
POOL = Pool(SEEDS)
mutate = of_tokens(_TOKENS, POOL)

_NODES = (
    *(ast.Expression, ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.IfExp, ast.Call),
    *(ast.Attribute, ast.Subscript, ast.Name, ast.Constant, ast.boolop, ast.unaryop, ast.operator),
    *(ast.cmpop, ast.Load),
)
_CALLED = {"size", "stride", "storage_offset", "item", "numel", "dim"}


_SIZE = 5_000
_LARGE = 3_000_000_000


class _Input(int):
    """An input of a program, and whatever it holds: a number, too."""

    def __getitem__(self, key: Any) -> _Input:
        return self

    def __iter__(self) -> Iterator[_Input]:
        return iter([self] * 8)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def size(self) -> list[int]:
        return [_SIZE] * 8

    def stride(self) -> list[int]:
        return [_LARGE] * 8

    def item(self) -> int:
        return _LARGE

    def dim(self) -> int:
        return 8

    storage_offset = item
    numel = item


_NAMESPACE = {**SYMPY_INTERP, "math": math, "torch": torch, "inf": math.inf, "nan": math.nan}


def _check_node(node: ast.AST) -> None:
    assert isinstance(node, _NODES), ast.dump(node)
    if isinstance(node, ast.Call):
        assert not node.keywords
        function = node.func
        if isinstance(function, ast.Attribute) and not isinstance(function.value, ast.Name):
            assert function.attr in _CALLED, function.attr
            assert not node.args, ast.dump(node)
    if isinstance(node, ast.Attribute):
        assert not node.attr.startswith("__"), node.attr
    if isinstance(node, ast.Name):
        known = node.id in ("L", "math", "torch", "abs", "bool", "float", "int", "max", "min")
        assert known or node.id in (*_NAMESPACE, "round"), node.id
    if isinstance(node, ast.Constant):
        assert not isinstance(node.value, (bytes, complex)), node.value


def _pairs(tree: ast.AST) -> set[tuple[str, str, str]]:
    """Yield pairs of a node and its parent, and the position."""
    return {
        (f"{_label(node)} {field}", _label(inner), str(min(position, 4)))
        for node in ast.walk(tree)
        for field, value in ast.iter_fields(node)
        for position, inner in enumerate(value if isinstance(value, list) else [value])
        if isinstance(inner, ast.AST)
    }


def _label(node: ast.AST) -> str:
    operator = type(getattr(node, "op", None)).__name__
    name = getattr(node, "id", "")
    attribute = getattr(node, "attr", "")
    known = attribute in _CALLED or hasattr(math, attribute) or "sym_" in attribute
    return f"{type(node).__name__} {operator} {name} {attribute if known else ''}"


def check(text: str) -> None:
    """AssertionError when a text that the gate lets through is more than a condition."""
    if not _native.passes_gate("Guard", text):
        return
    try:
        check_arithmetic([text], ((), {}), [])
    except SerializeError:
        return
    tree = ast.parse(text, mode="eval")
    for node in ast.walk(tree):
        _check_node(node)
    # As torch puts it into source: one call of a function whose second argument is a text.
    shown = ast.unparse(tree)
    source = ast.parse(f'def _(*args):\n  torch._assert({text}, "Guard failed: {shown}")\n')
    (function,) = source.body
    (statement,) = function.body  # type: ignore[attr-defined]
    condition, message = statement.value.args
    assert ast.dump(condition) == ast.dump(tree.body)
    assert isinstance(message, ast.Constant)
    compiled = compile(tree, "<guard>", "eval")

    def evaluate() -> None:
        with contextlib.suppress(Exception):  # a condition of wrong types, as Python finds
            eval(compiled, {**_NAMESPACE, "L": _Input(_SIZE)})

    timed.check(evaluate, LONGEST)
    POOL.add(text, _pairs(tree))


def read(data: bytes) -> None:
    """Run one input of the fuzzer."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    check(text)


def seeds() -> list[bytes]:
    return [seed.encode() for seed in SEEDS]
