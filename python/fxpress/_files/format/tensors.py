"""Describe the tensors in a file: their dtypes, and sizes as numbers or symbolic expressions."""

from __future__ import annotations

import ast
import math
from typing import Any, NamedTuple

from fxpress._files.format import fields
from fxpress._files.format.torch_facts import BY_NUMBER

_INFIX = {"Add": " + ", "Mul": "*"}
_MOST_CHARACTERS = 500  # longer expressions are not converted


class Tensor(NamedTuple):
    """A tensor as a file describes it. Sizes are ints, or expressions as text."""

    dtype: str
    shape: list[int | str]
    bytes: int | None  # bytes of its elements; None for symbolic sizes or an unknown dtype

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def dtype_of(number: int) -> tuple[str, int]:
    """Return name and itemsize for a `ScalarType` number. An unknown dtype has the itemsize 0."""
    if number == 0:
        return "unknown", 0
    dtype = BY_NUMBER.get(number)
    return (f"dtype {number}", 0) if dtype is None else (dtype.name, dtype.itemsize)


def tensor_of(meta: Any) -> Tensor:
    """Return the dtype, sizes and bytes that a `TensorMeta` of the schema describes."""
    dtype, itemsize = dtype_of(fields.expect_int(fields.expect_object(meta)["dtype"]))
    shape = [size_of(size) for size in fields.expect_list(meta["sizes"])]
    count: int | None = None
    if itemsize and all(isinstance(size, int) for size in shape):
        count = fields.expect_int(itemsize * math.prod(fields.sizes_in(shape)))
    return Tensor(dtype, shape, count)


def size_of(size: Any) -> int | str:
    """Return the int or the expression in a `SymInt` of the schema."""
    kind, value = fields.expect_one_of(size)
    if kind == "as_int":
        return fields.expect_int(value)
    return expression(fields.expect_str(fields.expect_object(value)["expr_str"]))


def example_of(size: Any) -> int | None:
    """Return the value of a `SymInt` for the example inputs; None if the file lacks the value."""
    kind, value = fields.expect_one_of(size)
    hint = (
        value
        if kind == "as_int"
        else fields.expect_object(fields.expect_object(value).get("hint") or {}).get("as_int")
    )
    return None if hint is None else fields.expect_int(hint)


def expression(text: str) -> str:
    """Convert an expression from sympy's `srepr` to infix; return any other text unchanged."""
    if len(text) > _MOST_CHARACTERS:
        return text
    try:
        return _infix(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return text


def _infix(tree: ast.expr) -> str:
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
        return f"-{_infix(tree.operand)}"
    if isinstance(tree, ast.Constant):
        return str(tree.value)
    if isinstance(tree, ast.Name):
        return tree.id
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name):
        raise ValueError(f"not an expression of sympy: {ast.dump(tree)}")
    name = tree.func.id
    if name in ("Symbol", "Integer", "Float"):
        return _infix(tree.args[0])
    parts = [_infix(each) for each in tree.args]
    if name in _INFIX:
        joined = _INFIX[name].join(parts)
        return f"({joined})" if name == "Add" else joined
    if name == "Pow" and len(parts) == 2:
        return "**".join(parts)
    return f"{name}({', '.join(parts)})"
