"""Run the stages in a folder by its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

import fxpress


class Chain:
    """The modules of all stages, which keep their state from run to run.

    Args:
        folder: what `fxpress split` has written.
        load: a loader of programs.
    """

    def __init__(self, folder: Path, load: Callable[[Any], ExportedProgram] = fxpress.load) -> None:
        self.manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text())
        self.programs = []
        for stage in self.manifest["stages"]:
            path = folder / stage["file"]
            assert path.stat().st_size == stage["bytes"]
            assert hashlib.sha256(path.read_bytes()).hexdigest() == stage["sha256"]
            self.programs.append(load(path))
        self.modules = [program.module() for program in self.programs]

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Return the leaves of the result of the entire program."""
        leaves = pytree.tree_leaves((args, kwargs))
        names = [each["name"] for each in self.manifest["inputs"]]
        given = dict(zip(names, leaves, strict=True))
        made: dict[tuple[int, str], Any] = {}

        def value(source: dict[str, Any]) -> Any:
            if "input" in source:
                return given[source["input"]]
            return made[source["stage"], source["output"]]

        for number, (stage, module) in enumerate(
            zip(self.manifest["stages"], self.modules, strict=True)
        ):
            results = module(*(value(each["from"]) for each in stage["inputs"]))
            for each, result in zip(stage["outputs"], results, strict=True):
                made[number, each["name"]] = result
        return [
            value(each["from"]) if each["from"] is not None else each["constant"]
            for each in self.manifest["outputs"]
        ]


def names_of_state(folder: Path) -> list[set[str]]:
    """Return the names of the state of each stage in a folder, by its `state.json`."""
    stages = json.loads((folder / "state.json").read_text())["stages"]
    return [{each["name"] for each in state} for state in stages]


def assert_same_values(found: list[Any], wanted: Any) -> None:
    """Tensors are equal bit for bit; constants by their text."""
    for one, other in zip(found, pytree.tree_leaves(wanted), strict=True):
        if isinstance(other, torch.Tensor):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
        else:
            assert one in (other, repr(other))
