"""Generate the source of the function that checks Dynamo's guards."""

from __future__ import annotations

import ast
import functools
from typing import Any

from fxpress import _native
from fxpress._torch.capture import format_frame, shorten_filename, uninteresting_files
from fxpress._torch.fx import GUARDS_LOG

_LONGEST = 1024  # Longer comments omit the program's line, which may be generated code.
_WIDTH = 60  # The comment after a guard begins at this column or later.


@functools.lru_cache(maxsize=1024)
def _short(filename: str) -> str:
    """Return a short file name; results are cached, because many guards come from few files."""
    return str(shorten_filename(filename))


def _origin(guard: Any) -> str:
    """Return a comment with the location of a guard in the program; "" if it is unknown."""
    if guard.user_stack:
        skipped = uninteresting_files()
        for frame in reversed(guard.user_stack):
            if frame.filename not in skipped:
                location = f"{_short(frame.filename)}:{frame.lineno} in {frame.name}"
                text = f"  # {frame.line}  # {location}"
                return text if len(text) <= _LONGEST else f"  # {location}"
        return ""
    if guard.stack:
        frames = guard.stack.summary()
        return f"  # {format_frame(frames[-1])}" if frames else "  # <unknown>"
    return ""


def get_verbose_code_part(code_part: str, guard: Any) -> str:
    """Return the text of a guard, then a comment with the guard's location in the program.

    Stands in for `torch._dynamo.guards.get_verbose_code_part`.
    """
    return f"{code_part:<{_WIDTH}}{'' if guard is None else _origin(guard)}"


_PARTS = (ast.Attribute, ast.Call, ast.Subscript)


def _text(node: ast.AST) -> str:
    return ast.unparse(node).replace("\n", "")


# These visitors are recursive. If a visitor exceeds the recursion limit, `_checks` discards the
# variables of all guards, because guards may share variables.
class _Parts(ast.NodeVisitor):
    """Counts repeated parts of an expression that the native parser does not support."""

    def __init__(self, common: _native.CommonSubexpressions) -> None:
        self._common = common

    def visit(self, node: ast.AST) -> None:
        if isinstance(node, _PARTS):
            self._common.count_part(_text(node))
        super().visit(node)


class _Variables(ast.NodeTransformer):
    """Replaces common parts of an expression, if the native parser does not support it."""

    def __init__(self, common: _native.CommonSubexpressions) -> None:
        self._common = common
        self.assignments: list[str] = []

    def visit(self, node: ast.AST) -> ast.AST:
        text = _text(node) if isinstance(node, _PARTS) else None
        if text is None or not self._common.is_common(text):
            return self.generic_visit(node)
        variable = self._common.variable(text)
        if variable is None:
            value = _text(self.generic_visit(node))
            variable = self._common.new_variable(text)
            self.assignments.append(f"{variable} = {value}")
        return ast.Name(variable, ast.Load())


def _count(common: _native.CommonSubexpressions, text: str) -> int | None:
    """Count an expression's parts; return its id, or None if only Python's parser can read it."""
    number = common.count(text) if text.isascii() else None
    if number is None:
        try:
            _Parts(common).visit(ast.parse(text))
        except SyntaxError as error:
            GUARDS_LOG.exception("Failed to visit expr at line %s.\n%s", error.lineno, text)
            raise
    return number


def _replace(
    common: _native.CommonSubexpressions, text: str, number: int | None
) -> tuple[list[str], str]:
    if number is not None:
        return common.replace(number)
    variables = _Variables(common)
    result = _text(variables.visit(ast.parse(text)))
    return variables.assignments, result


def _checks(code_parts: list[str]) -> list[str]:
    """Return the guard function's body, which returns False if an expression is false."""
    try:
        common = _native.CommonSubexpressions()
        numbers = [_count(common, part) for part in code_parts]
        replaced = [_replace(common, *each) for each in zip(code_parts, numbers, strict=True)]
    except RecursionError:
        replaced = [([], part) for part in code_parts]
    lines: list[str] = []
    for assignments, text in replaced:
        lines += (*assignments, f"if not ({text}):", "    return False")
    return lines


def build_guard_function(code_parts: list[str], closure_args: str) -> tuple[str, str]:
    """Return the source of a guard function's body, and of a function that creates this function.

    The guard function checks the expressions `code_parts`. It computes common parts once.

    Stands in for `torch._dynamo.guards.build_guard_function`.
    """
    lines = _checks(code_parts)
    whole = [
        f"def ___make_guard_fn({closure_args}):",
        "    def guard(L):",
        *("        " + line for line in lines),
        "        return True",
        "    return guard",
    ]
    return "".join(f"{line}\n" for line in lines), "".join(f"{line}\n" for line in whole)
