"""Check that arithmetic in the guards of a file operates on numbers or tensors.

The grammar of guards (`csrc/schema/guard_grammar.cpp`) bounds the cost of arithmetic on numbers.
Arithmetic on sequences costs more: `L['mode'] * 9 ** 9` is a text of 3 GB if the input
"mode" is a str, and `L['x'].size() * 9 ** 9` is a tuple of 30 GB.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from fxpress._torch import serde as compat

_NUMBERS = (int, float, bool, torch.Tensor, torch.SymInt, torch.SymFloat)
_ARITHMETIC = re.compile(r"[-+*/%&|^~]|<<|>>")
_SEQUENCES = {"size", "stride"}  # methods that return a sequence
_SELECTING = {"max", "min", "sym_max", "sym_min"}  # functions that return one of their arguments


def check_arithmetic(guards: Sequence[str], examples: Any, names: Sequence[str] | None) -> None:
    """Raise SerializeError for a guard with arithmetic on a value that may not be a number."""
    with_arithmetic = [each for each in enumerate(guards) if _ARITHMETIC.search(each[1])]
    if not examples or not with_arithmetic:
        return
    inputs = _Inputs(examples, names)
    for position, guard in with_arithmetic:
        for operand in _operands(ast.parse(guard, mode="eval")):
            if not inputs.is_number(operand):
                text = ast.unparse(operand)
                raise compat.SerializeError(
                    f"guards_code[{position}]: {guard[:120]!r} uses arithmetic on a value that "
                    f"may not be a number: {text[:120]}"
                )


def _argument_name(argument: Any, names: Sequence[str] | None) -> str | None:
    """Return the name that guards use for the argument at a pytree key; None if it is unknown."""
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


class _Inputs:
    """A tree of the example inputs, to look up the operands of arithmetic in guards.

    A node of the tree is a dict from a step in source code, such as "['x']", to the next node. A
    leaf is a bool: whether the input is a number or a tensor.
    """

    def __init__(self, examples: Any, names: Sequence[str] | None) -> None:
        self._tree: dict[str, Any] = {}
        self._are_numbers = True
        waiting = []
        for _, part in compat.keyed_children(examples) or ():
            for step, value in compat.keyed_children(part) or ():
                if (name := _argument_name(step, names)) is not None:
                    waiting.append((self._tree, f"[{name!r}]", value))
        while waiting:
            within, text, value = waiting.pop()
            known = within.get(text)  # the entry of an earlier argument with this name
            children = compat.keyed_children(value)
            if children is None:
                is_number = isinstance(value, _NUMBERS)
                self._are_numbers &= is_number
                within[text] = is_number and known in (None, True)
            elif isinstance(known, bool):
                within[text] = False
            else:
                inner = within.setdefault(text, {})
                waiting += [(inner, compat.keystr((step,)), child) for step, child in children]

    def is_number(self, value: ast.expr) -> bool:
        """Return whether an operand of arithmetic is certainly a number or a tensor."""
        match value:
            case ast.Constant():
                return not isinstance(value.value, str)
            case ast.BoolOp():
                return all(map(self.is_number, value.values))
            case ast.IfExp():
                return self.is_number(value.body) and self.is_number(value.orelse)
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)):
                if name in _SELECTING:
                    return all(map(self.is_number, value.args))
                return name not in _SEQUENCES
            case ast.Subscript() | ast.Attribute():
                return self._is_number_there(value)
        return True

    def _is_number_there(self, place: ast.expr) -> bool:
        """Return whether an input (a path from `L`) or a result's item is a number or tensor."""
        steps: list[str] = []
        at = place
        while isinstance(at, (ast.Subscript, ast.Attribute)):
            step = f".{at.attr}" if isinstance(at, ast.Attribute) else f"[{ast.unparse(at.slice)}]"
            steps.append(step)
            at = at.value
        steps.reverse()
        if isinstance(at, ast.Call):  # an item of L['x'].size() or .stride()
            return len(steps) == 1 and isinstance(place, ast.Subscript)
        if not isinstance(at, ast.Name) or at.id != "L":
            return True  # an attribute such as math.pi
        if steps[0] == "['flat_args']":  # an item of L['flat_args'] may be any input
            return len(steps) == 2 and self._are_numbers
        if len(steps) > 1 and steps[1].startswith("[") and steps[1][1:-1].isdigit():
            # torch reads L['args'][0] as L['args_0'] if an argument has that name.
            joined = [f"{steps[0][:-2]}_{steps[1][1:-1]}']", *steps[2:]]
            return self._is_number_in(steps) and self._is_number_in(joined)
        return self._is_number_in(steps)

    def _is_number_in(self, steps: list[str]) -> bool:
        at: Any = self._tree
        for position, step in enumerate(steps, start=1):
            at = at.get(step)
            if isinstance(at, bool):  # L['x'][0], a row of a tensor, counts as a number
                return at and (position == len(steps) or steps[position].startswith("["))
            if at is None:
                break
        return True  # torch raises an error for an unknown input
