"""Check that the arithmetic in the guards of a file works on numbers.

The grammar of guards (`csrc/schema/guard_grammar.cpp`) bounds the cost of arithmetic on numbers.
Sequences cost more: `L['mode'] * 9 ** 9` is a text of 3 GB, `L['x'].size() * 9 ** 9` a tuple of
30 GB.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fxpress._torch import serde as compat

_NUMBERS = (int, float, bool, torch.Tensor, torch.SymInt, torch.SymFloat)
_ARITHMETIC = re.compile(r"[-+*/%&|^~]|<<|>>")
_SEQUENCES = {"size", "stride"}  # methods that return a sequence
_PASSED_ON = {"max", "min", "sym_max", "sym_min"}  # functions whose result is an argument


@dataclass
class _Leaf:
    """An example input."""

    path: list[str]  # the argument that holds it, and the steps from there, as source code
    is_number: bool  # also true for a tensor


def check_arithmetic(guards: Sequence[str], examples: Any, names: Sequence[str] | None) -> None:
    """Raise SerializeError for a guard with arithmetic on a value that may not be a number."""
    if not examples:
        return
    leaves = list(_leaves(examples, names))
    for position, guard in enumerate(guards):
        if _ARITHMETIC.search(guard) is None:
            continue
        for operand in _operands(ast.parse(guard, mode="eval")):
            if not _is_number(operand, leaves):
                text = ast.unparse(operand)
                raise compat.SerializeError(
                    f"guards_code[{position}]: {guard[:120]!r} calculates with what may not be a "
                    f"number: {text[:120]}"
                )


def _leaves(examples: Any, names: Sequence[str] | None) -> Iterator[_Leaf]:
    """Yield the example inputs that torch finds by the names of their arguments."""
    for path, value in compat.leaves_with_path(examples):
        name = _argument_name(path, names)
        if name is not None:
            steps = [f"[{name!r}]", *(compat.keystr((step,)) for step in path[2:])]
            yield _Leaf(steps, isinstance(value, _NUMBERS))


def _argument_name(path: Sequence[Any], names: Sequence[str] | None) -> str | None:
    """Return the name of the argument that a path in (arguments, keyword arguments) leads to."""
    argument: Any = path[1] if len(path) > 1 else None
    if hasattr(argument, "key"):
        return str(argument.key)
    index = getattr(argument, "idx", None)
    if index is None or not names:
        return None if index is None else f"arg_{index}"
    return names[index] if index < len(names) else None


def _operands(guard: ast.AST) -> Iterator[ast.expr]:
    """Yield the operands of the arithmetic in a guard."""
    for node in ast.walk(guard):
        if isinstance(node, ast.BinOp):
            yield node.left
            yield node.right
        elif isinstance(node, ast.UnaryOp) and not isinstance(node.op, ast.Not):
            yield node.operand


def _is_number(value: ast.expr, leaves: Sequence[_Leaf]) -> bool:
    match value:
        case ast.Constant():
            return not isinstance(value.value, str)
        case ast.BoolOp():
            return all(_is_number(each, leaves) for each in value.values)
        case ast.IfExp():
            return _is_number(value.body, leaves) and _is_number(value.orelse, leaves)
        case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
            if name in _PASSED_ON:
                return all(_is_number(each, leaves) for each in value.args)
            return name not in _SEQUENCES
        case ast.Subscript() | ast.Attribute():
            return _is_number_there(value, leaves)
    return True


def _is_number_there(place: ast.expr, leaves: Sequence[_Leaf]) -> bool:
    """Return whether there is a number at a path in an input, or in the result of a method."""
    steps: list[str] = []
    at = place
    while isinstance(at, (ast.Subscript, ast.Attribute)):
        step = f".{at.attr}" if isinstance(at, ast.Attribute) else f"[{ast.unparse(at.slice)}]"
        steps.append(step)
        at = at.value
    steps.reverse()
    if isinstance(at, ast.Call):  # an item of a size or of strides
        return len(steps) == 1 and isinstance(place, ast.Subscript)
    if not isinstance(at, ast.Name) or at.id != "L":
        return True  # math.pi
    if steps[0] == "['flat_args']":  # torch replaces it by the path of any leaf
        return len(steps) == 2 and all(leaf.is_number for leaf in leaves)
    if len(steps) > 1 and steps[1].startswith("[") and steps[1][1:-1].isdigit():
        # torch reads L['args'][0] as L['args_0'] when there is an argument of that name
        joined = [f"{steps[0][:-2]}_{steps[1][1:-1]}']", *steps[2:]]
        return _is_number_in(leaves, steps) and _is_number_in(leaves, joined)
    return _is_number_in(leaves, steps)


def _is_number_in(leaves: Sequence[_Leaf], steps: list[str]) -> bool:
    for leaf in leaves:
        if steps[: len(leaf.path)] == leaf.path:
            beyond = steps[len(leaf.path) :]
            return leaf.is_number and (not beyond or beyond[0].startswith("["))  # a row of a tensor
    return True  # torch raises an error for an input that it does not know
