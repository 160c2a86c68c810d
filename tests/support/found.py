"""Finding faults, hashes and nodes in files."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.export import ExportedProgram

import fxpress
from fxpress._tools.inspect.hashes import hash_programs
from fxpress._tools.inspect.nodes import find_nodes
from fxpress._tools.inspect.verification import Fault, check_file


def find_faults(path: Path) -> list[Fault]:
    """Return the faults that `fxpress verify` finds, without notes."""
    return [fault for fault in check_file(path) if not fault.is_note]


def assert_hashed_as_loaded(path: Path) -> None:
    """`fxpress hash` gives the hashes of the program that is loaded from the file."""
    for include_state in (False, True):
        loaded = fxpress.graph_hash(fxpress.load(path), include_state=include_state)
        assert hash_programs(path, include_state=include_state) == [("model", loaded)]


def assert_all_are_found(program: ExportedProgram, path: Path) -> None:
    """`fxpress inspect --node` finds each call by its name, with the type of its tensor."""
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        found = find_nodes(path, node.name)
        assert found, node.name
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            sizes = ", ".join(str(size) for size in value.shape)
            types = {kind for each in found for name, kind in each.outputs if name == node.name}
            assert types == {f"{str(value.dtype).removeprefix('torch.')}[{sizes}]"}, node.name
