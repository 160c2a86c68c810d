"""Check arguments of public functions. The exceptions name the argument."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from typing import Any

from torch.export import ExportedProgram


def check_program(value: Any, name: str) -> None:
    """Raise TypeError unless the value is an exported program."""
    if not isinstance(value, ExportedProgram):
        raise TypeError(
            f"The '{name}' parameter must be an instance of 'ExportedProgram', got "
            f"'{type(value).__name__}' instead."
        )


def check_table(value: Any, name: str) -> None:
    """Raise TypeError unless the value is a dict, another mapping, or None."""
    if value is not None and not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict, not {type(value).__name__}")


def check_opset_version(value: Any) -> None:
    """Raise TypeError unless the value is None, or maps names to version numbers."""
    check_table(value, "opset_version")
    for name, version in (value or {}).items():
        if not isinstance(name, str) or not isinstance(version, int):
            raise TypeError(f"opset_version must map str to int, not {name!r} to {version!r}")


def check_pickle_protocol(value: Any) -> None:
    """Raise TypeError if the value is not an int, ValueError if Python lacks this protocol."""
    if not isinstance(value, int):
        raise TypeError(f"pickle_protocol must be an int, not {type(value).__name__}")
    if not 0 <= value <= pickle.HIGHEST_PROTOCOL:
        raise ValueError(f"pickle_protocol must be 0 to {pickle.HIGHEST_PROTOCOL}, not {value}")
