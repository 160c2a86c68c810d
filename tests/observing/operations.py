"""A call of each operation that is watched, with its name."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram

import fxpress
from fxpress import (
    archive,
    checkpoint,
    decompose,
    export,
    functional_export,
    pipeline,
    serialize,
    split_module,
    state,
    unflatten,
)

# Takes a program, a file that it was saved in, and keywords.
Call = Callable[..., Any]


class Operation(NamedTuple):
    """A public function, a call of it, and the word that its progress has."""

    name: str
    function: Any
    call: Call
    doing: str | None = None  # None: it has no progress


def _split(function: Any, program: ExportedProgram) -> Any:
    return function(program.graph_module, None, lambda node: 0)


def _split_simply(function: Any, program: ExportedProgram) -> Any:
    module = program.graph_module
    nodes = [node for node in module.graph.nodes if node.op == "call_function"]
    return function(module, dict.fromkeys(nodes, 0))


def _loaded_without_weights(path: Path) -> ExportedProgram:
    return fxpress.load(path, load_weights=False)


def _fresh(path: Path) -> Path:
    return Path(tempfile.mkdtemp(dir=path.parent))


def _saved_stages(program: ExportedProgram, path: Path) -> Path:
    folder = path.with_name("stages")
    if not folder.exists():
        pipeline.save_stages(program, folder, 2, progress=False)
    return folder


def _capture(make: Any, **options: Any) -> Any:
    return make(torch.nn.Linear(2, 2), **options)(torch.ones(1, 2))


OPERATIONS = [
    Operation(
        "split_module", split_module.split_module, lambda p, _: _split(split_module.split_module, p)
    ),
    Operation(
        "split_module.split_module_simple",
        split_module.split_module_simple,
        lambda p, _: _split_simply(split_module.split_module_simple, p),
    ),
    Operation(
        "unflatten",
        unflatten.unflatten,
        lambda p, _, **k: unflatten.unflatten(p, **k),
        "copying state",
    ),
    Operation(
        "unflatten.UnflattenedModule",
        unflatten.UnflattenedModule.__init__,
        lambda p, _: unflatten.UnflattenedModule(p),
    ),
    Operation("export.module", export.module, lambda p, _: export.module(p)),
    Operation(
        "decompose.run_decompositions",
        decompose.run_decompositions,
        lambda p, _, **k: decompose.run_decompositions(p, **k),
        "decomposing",
    ),
    Operation(
        "serialize",
        serialize.serialize,
        lambda p, _, **k: serialize.serialize(p, **k),
        "serializing",
    ),
    Operation(
        "serialize.deserialize",
        serialize.deserialize,
        lambda p, _: serialize.deserialize(serialize.serialize(p)),
    ),
    Operation(
        "graph_hash",
        fxpress.graph_hash,
        lambda p, _, **k: fxpress.graph_hash(p, include_state=True, **k),
        "hashing values",
    ),
    Operation(
        "diff",
        fxpress.diff,
        lambda p, _, **k: fxpress.diff(p, p, include_state=True, **k),
        "hashing values",
    ),
    Operation("save", fxpress.save, lambda p, _, **k: fxpress.save(p, io.BytesIO(), **k), "saving"),
    Operation("load", fxpress.load, lambda _, path, **k: fxpress.load(path, **k), "loading"),
    Operation(
        "archive.package_pt2",
        archive.package_pt2,
        lambda p, _, **k: archive.package_pt2(io.BytesIO(), exported_programs=p, **k),
        "saving",
    ),
    Operation(
        "archive.load_pt2",
        archive.load_pt2,
        lambda _, path, **k: archive.load_pt2(path, **k),
        "loading",
    ),
    Operation(
        "archive.verify",
        archive.verify,
        lambda _, path, **k: archive.verify(path, **k),
        "checking",
    ),
    Operation(
        "state.clone", state.clone, lambda p, _, **k: state.clone(p.state_dict, **k), "copying"
    ),
    Operation(
        "state.move", state.move, lambda p, _, **k: state.move(p.state_dict, "meta", **k), "copying"
    ),
    Operation(
        "state.write",
        state.write,
        lambda p, _, **k: state.write(p.state_dict, io.BytesIO(), **k),
        "saving",
    ),
    Operation("state.read", state.read, lambda _, path, **k: state.read(path, **k), "loading"),
    Operation(
        "state.load_into",
        state.load_into,
        lambda p, path, **k: state.load_into(_loaded_without_weights(path), p.state_dict, **k),
        "copying",
    ),
    Operation(
        "checkpoint.convert_weights",
        checkpoint.convert_weights,
        lambda _, path, **k: checkpoint.convert_weights(path, path.with_name("weights"), **k),
        "converting",
    ),
    Operation(
        "pipeline.save_stages",
        pipeline.save_stages,
        lambda p, path, **k: pipeline.save_stages(p, _fresh(path), 2, **k),
        "saving",
    ),
    Operation(
        "pipeline.load_stage",
        pipeline.load_stage,
        lambda p, path, **k: pipeline.load_stage(_saved_stages(p, path), 0, **k),
        "loading",
    ),
    Operation("pipeline.to_pipe", pipeline.to_pipe, lambda p, _: pipeline.to_pipe(p, 2)),
    Operation(
        "functional_export.capture",
        functional_export._dynamo_graph_capture_for_export,
        lambda _, __, **k: _capture(functional_export._dynamo_graph_capture_for_export, **k),
        "capturing",
    ),
    Operation(
        "functional_export.capture",
        functional_export.dynamo_graph_capture_for_export,
        lambda _, __, **k: _capture(functional_export.dynamo_graph_capture_for_export, **k),
        "capturing",
    ),
]
WITH_PROGRESS = [each for each in OPERATIONS if each.doing is not None]
