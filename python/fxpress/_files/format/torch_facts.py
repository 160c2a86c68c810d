"""What is known of torch without importing it: the schema of programs in files, its operators."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from fxpress import _native

# Of an operator: arguments whose storage its results may share, arguments that it writes, whether
# it draws random numbers, has another effect, or changes a mode.
Traits = tuple[list[str], list[str], bool, bool, bool]


@functools.cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(Path(__file__).with_name("torch.json").read_bytes())
    return facts


@functools.cache
def schema() -> _native.Schema:
    """Return the schema of programs in files."""
    return _native.Schema(
        [
            (name, is_union, [tuple(field) for field in fields])
            for name, is_union, fields in _facts()["schema"]
        ]
    )


def operators() -> dict[str, Traits]:
    """Return what is known of each operator, by its name in files."""
    known: dict[str, Traits] = _facts()["operators"]
    return known


def torch_version() -> str:
    """Return the release of torch whose operators and schema these are."""
    return str(_facts()["torch"])
