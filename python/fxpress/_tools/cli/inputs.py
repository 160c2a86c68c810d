"""Read example inputs from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.export import ExportedProgram

from fxpress._files.format.recognition import read_file
from fxpress._files.serde.artifacts import load_any
from fxpress._files.serde.limits import Budget
from fxpress._files.serde.values import Values
from fxpress._tools.cli.loading import CommandError, options_named
from fxpress._torch.decompose import pytree


def example_inputs_of(path: Path, program: ExportedProgram, allow_pickle: bool) -> tuple[Any, Any]:
    """Return (args, kwargs) from a file of `torch.save`; CommandError unless they fit `program`."""
    data = read_file(path)
    values = Values({}, budget=Budget(None, len(data)))
    with options_named(path):
        value = load_any(data, "the file of inputs", values, allow_pickle=allow_pickle)
    is_pair = isinstance(value, (tuple, list)) and len(value) == 2
    args, kwargs = value if is_pair and isinstance(value[1], dict) else (None, None)
    if not isinstance(args, (tuple, list)) or not isinstance(kwargs, dict):
        raise CommandError(f"{path}: expected (args, kwargs), a tuple and a dict")
    spec = program.call_spec.in_spec
    _, given = pytree.tree_flatten((tuple(args), kwargs))
    if spec is not None and given != spec:
        raise CommandError(f"{path}: expected inputs with the structure {spec}, found {given}")
    return tuple(args), kwargs
