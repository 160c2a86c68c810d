"""The programs of the corpus, each exported by torch once for the comparisons of all components."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn
from torch.export import ExportedProgram, export
from torch.testing._internal.hop_db import hop_db

from tests.support.architectures import FAMILIES, architecture, inputs
from tests.support.exported import (
    dynamic_shapes,
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
        collection: exportdb, module_db, hop_db or transformers.
        name: its name in the collection.
        mode: nonstrict, strict, or dynamic: non-strict, and the first dimension of each input is a
            symbol; for transformers, the second one too. dynamic_strict: the same, but strict.
            Programs of exportdb have their own dynamic shapes.
    """

    collection: str
    name: str
    mode: str

    def __str__(self) -> str:
        return f"{self.collection}-{self.name}-{self.mode}"


@dataclass
class Case:
    """A model and what torch exports of it.

    Attributes:
        result: the program that torch exports, or what it raises.
        eager: a copy of the model after the export; None where torch does not run the program.
            Every comparison that runs it changes it alike.
    """

    entry: Entry
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    shapes: Any
    folder: Path
    result: ExportedProgram | Exception = field(init=False)
    eager: nn.Module | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        try:
            self.result = self.export()
        except Exception as error:
            self.result = error
            return
        if runs(self.result, self.args, self.kwargs):
            self.eager = copy.deepcopy(self.model)

    def export(self) -> ExportedProgram:
        """Export the model, by torch or by who has replaced torch."""
        torch.manual_seed(0)
        shapes, strict = (
            self.shapes,
            self.entry.mode.endswith("strict") and self.entry.mode != "nonstrict",
        )
        return export(self.model, self.args, self.kwargs, dynamic_shapes=shapes, strict=strict)

    @property
    def program(self) -> ExportedProgram:
        """The exported program; the test is skipped where torch does not export it."""
        if isinstance(self.result, Exception):
            pytest.skip(f"torch does not export it: {type(self.result).__name__}")
        return self.result

    @property
    def inputs_of_other_sizes(self) -> tuple[Any, Any] | None:
        """Further arguments for a program whose sizes are symbols, if there are some."""
        if (self.entry.collection, self.entry.mode) == ("transformers", "dynamic"):
            return inputs(self.entry.name, 3, 13, masked=True)
        return None

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
# mistral has nearly the graph of llama, phi has gpt_neox's, and opt has gpt2's.
TRANSFORMERS = (*FAMILIES, "gpt2", "gpt_neox")
_Model = tuple[nn.Module, tuple[Any, ...], dict[str, Any], Any]


def _exportdb(name: str) -> _Model:
    case = exportdb_cases()[name]
    return case.model, case.example_args, case.example_kwargs or {}, case.dynamic_shapes


def _module_db(name: str) -> _Model:
    inputs, build = module_db_cases()[name]
    torch.manual_seed(0)
    return build().eval(), tuple(inputs.args), dict(inputs.kwargs), None


def _hop_db(name: str) -> _Model:
    with skipped_unless_exported():  # some have no sample
        sample = next(operator_samples(_HOPS[name], torch.float32))
    return Call(_HOPS[name].op, sample.args, sample.kwargs), (sample.input,), {}, None


def _transformers(name: str) -> _Model:
    pytest.importorskip("transformers")
    made = architecture(name, 2, masked=True)
    return made.model, made.args, made.kwargs, None


_MODELS: dict[str, Callable[[str], _Model]] = {
    "exportdb": _exportdb,
    "module_db": _module_db,
    "hop_db": _hop_db,
    "transformers": _transformers,
}


def entries() -> list[Entry]:
    """Return all entries of the corpus."""
    modules = sorted(module_db_cases())
    names = {
        "exportdb": sorted(exportdb_cases()),
        "module_db": modules,
        "hop_db": sorted(_HOPS),
        "transformers": list(TRANSFORMERS),
    }
    return [
        *(
            Entry(collection, name, mode)
            for collection, all_of_it in names.items()
            for name in all_of_it
            for mode in ("nonstrict", "strict")
        ),
        *(Entry("module_db", name, "dynamic") for name in sampled(modules, 16, seed=1)),
        *(
            Entry("transformers", name, mode)
            for name in TRANSFORMERS
            for mode in ("dynamic", "dynamic_strict")
        ),
    ]


def exported(entry: Entry, folder: Path) -> Case:
    """Build the model and export it by torch; the test is skipped where torch has no sample."""
    model, args, kwargs, shapes = _MODELS[entry.collection](entry.name)
    if entry.mode.startswith("dynamic"):
        shapes = dynamic_shapes(args, kwargs, 2 if entry.collection == "transformers" else 1)
    return Case(entry, model, args, kwargs, shapes, folder)


def runs(program: ExportedProgram, args: Any, kwargs: Any) -> bool:
    """Whether torch can run the exported program; runs a copy, because it may write buffers."""
    try:
        copied = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
        copy.deepcopy(program).module()(*copied[0], **copied[1])
    except Exception:
        return False
    return True
