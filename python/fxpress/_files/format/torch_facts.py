"""Load facts about torch without importing it: the schema of files, operators, dtypes.

`refusal` decides which operators a file may call.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from fxpress import _native

_OPERATORS = "torch.ops."
_MOST_PARTS = 16  # dotted parts of a name that `_names_of` uses; a name in a file may have more
_UNLISTED = "torch has it, but not for exported programs"
# The effects of an operator: names of arguments that its results may alias; names of arguments that
# it writes; whether it draws random numbers; whether it has another side effect; whether it changes
# a mode for later nodes. The native form is `OperatorTraits` in `csrc/schema/graph_hash.h`.
Traits = tuple[list[str], list[str], bool, bool, bool]


@functools.cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(Path(__file__).with_name("torch.json").read_bytes())
    return facts


@functools.cache
def schema() -> _native.Schema:
    """Return the schema of serialized programs."""
    return _native.Schema(
        [
            (name, is_union, [tuple(field) for field in fields])
            for name, is_union, fields in _facts()["schema"]
        ]
    )


def operators() -> dict[str, Traits]:
    """Return the `Traits` of torch's operators, by the operators' names in files."""
    known: dict[str, Traits] = _facts()["operators"]
    return known


class _Rules(NamedTuple):
    """Names of operators and namespaces of torch, as `_names_of` returns them."""

    callable: frozenset[str]  # operators that exported programs call
    outside: dict[str, str]  # name -> its effect outside of its arguments, such as writing a file
    others: frozenset[str]  # torch's other operators; exported programs do not call them


@functools.cache
def _rules() -> _Rules:
    rules = _facts()["rules"]
    groups = (name for _, names in rules["callable"] for name in names)
    return _Rules(frozenset(groups), rules["outside"], frozenset(rules["others"]))


def _names_of(target: str) -> list[str]:
    """Return the names by which `_Rules` may list "torch.ops.a.b.c": "a.b.c", "a.b" and "a"."""
    name = target.removeprefix(_OPERATORS)
    parts = name.split(".", _MOST_PARTS)[:_MOST_PARTS]
    return [name, *(".".join(parts[:count]) for count in range(len(parts), 0, -1))]


def allowed_names(names: Iterable[str]) -> frozenset[str]:
    """Return the set of names in an argument `allow_operators`; TypeError unless all are str."""
    kept = None if isinstance(names, (str, bytes)) else tuple(names)
    if kept is None or not all(isinstance(name, str) for name in kept):
        raise TypeError(
            f"expected a list of names like 'aten.save' in allow_operators, got {names!r}"
        )
    return frozenset(name.removeprefix(_OPERATORS) for name in kept)


def refusal(
    target: str, allowed: frozenset[str] = frozenset(), *, is_torchs: bool = False
) -> str | None:
    """Return why a file may not call the operator or function `target`; None if it may.

    `allowed` is a result of `allowed_names`. A file may call operators of libraries other than
    torch. For an unlisted operator, `is_torchs` states whether the operator belongs to torch.
    """
    names, rules = _names_of(target), _rules()
    if not allowed.isdisjoint(names):
        return None
    for name in names:
        if name in rules.outside:
            return rules.outside[name]
    if not rules.callable.isdisjoint(names):
        return None
    is_other = target.startswith(_OPERATORS) and not rules.others.isdisjoint(names)
    return _UNLISTED if is_torchs or is_other else None


def refusal_text(target: str, reason: str, option: str = "allow_operators=['{}']") -> str:
    """Return the message for a refused operator. It names the option that allows the operator."""
    is_operator = target.startswith(_OPERATORS)
    name = ".".join(_names_of(target)[0].split(".")[:2]) if is_operator else target
    return f"`{target}` is refused: {reason}; for a file that you trust, use {option.format(name)}"


def torch_version() -> str:
    """Return the version of torch that `torch.json` describes."""
    return str(_facts()["torch"])


class Dtype(NamedTuple):
    """A dtype. `number` is its `ScalarType` in programs; `code` names it in safetensors files."""

    name: str  # torch's name for it, without "torch."
    itemsize: int  # bytes
    number: int
    code: str | None


DTYPES = tuple(
    Dtype(*row)
    for row in (
        ("uint8", 1, 1, "U8"),
        ("int8", 1, 2, "I8"),
        ("int16", 2, 3, "I16"),
        ("int32", 4, 4, "I32"),
        ("int64", 8, 5, "I64"),
        ("float16", 2, 6, "F16"),
        ("float32", 4, 7, "F32"),
        ("float64", 8, 8, "F64"),
        ("complex32", 4, 9, None),
        ("complex64", 8, 10, "C64"),
        ("complex128", 16, 11, None),
        ("bool", 1, 12, "BOOL"),
        ("bfloat16", 2, 13, "BF16"),
        ("uint16", 2, 28, "U16"),
        ("float8_e4m3fn", 1, 29, "F8_E4M3"),
        ("float8_e5m2", 1, 30, "F8_E5M2"),
        ("float8_e4m3fnuz", 1, 31, "F8_E4M3FNUZ"),
        ("float8_e5m2fnuz", 1, 32, "F8_E5M2FNUZ"),
        ("float8_e8m0fnu", 1, 33, "F8_E8M0"),
        ("uint32", 4, 34, "U32"),
        ("uint64", 8, 35, "U64"),
    )
)
BY_NUMBER = {dtype.number: dtype for dtype in DTYPES}
BY_CODE = {dtype.code: dtype for dtype in DTYPES if dtype.code is not None}
