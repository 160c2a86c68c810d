"""The programs of torch's collections, each exported once for the comparisons of all components."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.testing._internal.hop_db import hop_db

from tests.support.exported import (
    exportdb_cases,
    module_db_cases,
    operator_samples,
    skipped_unless_exported,
)
from tests.support.sampled import sampled


@dataclass(frozen=True)
class Entry:
    """A program of the corpus, which `exported` exports.

    Attributes:
        collection: exportdb, module_db or hop_db.
        name: its name in the collection.
        mode: nonstrict, strict, or dynamic: non-strict, and the first dimension of each input is a
            symbol. Programs of exportdb have their own dynamic shapes.
    """

    collection: str
    name: str
    mode: str

    def __str__(self) -> str:
        return f"{self.collection}-{self.name}-{self.mode}"


@dataclass
class Case:
    """An exported program; `eager` is the model, or None where torch does not run the program."""

    entry: Entry
    program: ExportedProgram
    eager: nn.Module | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    folder: Path

    @cached_property
    def path(self) -> Path:
        """The file of the program that torch saves."""
        path = self.folder / "torch.pt2"
        with skipped_unless_exported():
            torch.export.save(self.program, path)
        return path

    @cached_property
    def decomposed(self) -> ExportedProgram | None:
        """The program with torch's default decompositions; None where torch raises."""
        try:
            return self.program.run_decompositions()
        except Exception:
            return None


class Inner(nn.Module):
    """Calls an operator of higher order on its input times a parameter."""

    def __init__(self, op: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.op = op
        self.rest = (args, kwargs)
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> object:
        args, kwargs = self.rest
        return self.op(x * self.scale, *args, **kwargs)


class Call(nn.Module):
    """Calls the operator in a submodule, between operations of the root."""

    def __init__(self, op: Any, args: Any, kwargs: Any) -> None:
        super().__init__()
        self.inner = Inner(op, args, kwargs)

    def forward(self, x: torch.Tensor) -> object:
        result = self.inner(x.sin().cos())
        return pytree.tree_map_only(torch.Tensor, lambda t: t.neg().exp(), result)


_HOPS = {f"{info.name}_{info.variant_test_name}".rstrip("_"): info for info in hop_db}
_MODULES = {name: (inputs, build) for name, inputs, build in module_db_cases()}
_Model = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]


def _exportdb(name: str) -> _Model:
    case = exportdb_cases()[name]
    return case.model, case.example_args, case.example_kwargs or {}, case.dynamic_shapes


def _module_db(name: str) -> _Model:
    inputs, build = _MODULES[name]
    torch.manual_seed(0)
    return build().eval(), tuple(inputs.args), dict(inputs.kwargs), None


def _hop_db(name: str) -> _Model:
    sample = next(operator_samples(_HOPS[name], torch.float32))
    return Call(_HOPS[name].op, sample.args, sample.kwargs), (sample.input,), {}, None


_MODELS: dict[str, Callable[[str], _Model]] = {
    "exportdb": _exportdb,
    "module_db": _module_db,
    "hop_db": _hop_db,
}


def entries() -> list[Entry]:
    """Return all entries of the corpus."""
    modules = sorted(_MODULES)
    names = {"exportdb": sorted(exportdb_cases()), "module_db": modules, "hop_db": sorted(_HOPS)}
    return [
        *(
            Entry(collection, name, mode)
            for collection, all_of_it in names.items()
            for name in all_of_it
            for mode in ("nonstrict", "strict")
        ),
        *(Entry("module_db", name, "dynamic") for name in sampled(modules, 16, seed=1)),
    ]


def exported(entry: Entry, folder: Path) -> Case:
    """Export a program; the test is skipped where torch has no sample or does not export it."""
    with skipped_unless_exported():
        model, args, kwargs, shapes = _MODELS[entry.collection](entry.name)
        if entry.mode == "dynamic":
            shapes = (*_dynamic(args), *_dynamic(kwargs).values())
        strict = entry.mode == "strict"
        program = export(model, args, kwargs, dynamic_shapes=shapes, strict=strict)
    eager = copy.deepcopy(model) if runs(program, args, kwargs) else None
    return Case(entry, program, eager, args, kwargs, folder)


def _dynamic(inputs: Any) -> Any:
    """Dynamic shapes of inputs: a symbol for the first dimension of each tensor that has one."""
    return pytree.tree_map(
        lambda x: {0: Dim.AUTO} if isinstance(x, torch.Tensor) and x.dim() else None, inputs
    )


def runs(program: ExportedProgram, args: Any, kwargs: Any) -> bool:
    """Whether torch itself runs what it exported: a copy of it, whose buffers it may write."""
    try:
        copied = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        copy.deepcopy(program).module()(*copied[0], **copied[1])
    except Exception:
        return False
    return True
