"""Describe the stages of a program, as JSON can hold it."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fxpress._distributed.stages.cut import Cut, Stage
from fxpress._distributed.stages.ends import is_mutation, state_of
from fxpress._distributed.stages.planned import Plan
from fxpress._distributed.stages.shared import shared_of_cut
from fxpress._distributed.stages.sizes import storage_of, value_of
from fxpress._torch.decompose import pytree
from fxpress._torch.serde import dump_treespec

FORMAT, STATE_FORMAT, VERSION = "fxpress stages", "fxpress state of stages", 1


def manifest_of(program: ExportedProgram, cut: Cut, plan: Plan, files: list[dict[str, Any]]) -> Any:
    """Return what the file `manifest.json` says: what each rank reads, whatever its stage.

    So it has nothing that is as long as the program, such as names of weights.

    Args:
        program: the whole program.
        cut: its stages.
        plan: that it was cut by, which every process that reads the manifest can compare.
        files: of each stage where it is: "file" or "program", and digests.
    """
    ends = cut.ends
    return {
        "format": FORMAT,
        "version": VERSION,
        "checksum": "",  # of the text, which `sealed` makes
        "fxpress": _version(),
        "torch": torch.__version__,
        "by": plan.by,
        "source": {"graph_hash": plan.graph_hash},
        "plan": plan.document(),
        "in_spec": dump_treespec(program.call_spec.in_spec),
        "out_spec": dump_treespec(program.call_spec.out_spec),
        "inputs": [
            {"name": node.name, "path": path, **described(value_of(node))}
            for node, path in zip(ends.inputs, _input_paths(program), strict=True)
        ],
        "outputs": _outputs(program, cut),
        "stages": [
            {**file, **_stage(program, cut, stage)}
            for stage, file in zip(cut.stages, files, strict=True)
        ],
        "shared": [
            {"names": list(names), "stages": list(stages)}
            for names, stages in shared_of_cut(program, cut)
        ],
    }


def state_of_stages(program: ExportedProgram, cut: Cut) -> Any:
    """Return what the file `state.json` says: the state of each stage."""
    return {
        "format": STATE_FORMAT,
        "version": VERSION,
        "stages": [_state(program, cut, stage) for stage in cut.stages],
    }


def _version() -> str | None:
    """Return the version of fxpress; None for sources that are not installed."""
    try:
        return importlib.metadata.version("fxpress")
    except importlib.metadata.PackageNotFoundError:
        return None


def described(value: Any) -> dict[str, Any]:
    """Return the type of a value, with sizes of a tensor; symbols are texts."""
    if isinstance(value, torch.Tensor):
        return {
            "type": "tensor",
            "dtype": str(value.dtype).removeprefix("torch."),
            "shape": [size if isinstance(size, int) else str(size) for size in value.shape],
            **_order(value),
        }
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {"type": type(value).__name__.removeprefix("Sym").lower(), "symbol": str(value)}
    is_plain = value is None or isinstance(value, (bool, int, float, str))
    return {"type": type(value).__name__, "constant": value if is_plain else repr(value)}


def _order(value: torch.Tensor) -> dict[str, list[int]]:
    """Return the dimensions by their place in memory, outermost first, if that is not their order.

    Symbols count as the numbers that the program was exported with.
    """
    if value.layout is not torch.strided:
        return {}
    strides = [
        each.node.hint if isinstance(each, torch.SymInt) else each for each in value.stride()
    ]
    if None in strides:
        return {}
    order = sorted(range(len(strides)), key=lambda dimension: -strides[dimension])
    return {} if order == sorted(order) else {"order": order}


def _source(cut: Cut, node: Node) -> dict[str, Any]:
    """Return where a value comes from: from the caller, or from a stage."""
    if node in cut.ends.inputs:
        return {"input": node.name}
    return {"stage": cut.maker[node], "output": node.name}


def _outputs(program: ExportedProgram, cut: Cut) -> list[dict[str, Any]]:
    values = [value for value, spec in cut.ends.results if not is_mutation(spec)]
    found = []
    for value, path in zip(values, _output_paths(program, len(values)), strict=True):
        if isinstance(value, Node):
            source = _source(cut, value)
            found.append({"path": path, **described(value_of(value)), "from": source})
        else:
            found.append({"path": path, **described(value), "from": None})
    return found


def _state(program: ExportedProgram, cut: Cut, stage: Stage) -> list[dict[str, Any]]:
    values = state_of(program)
    found = []
    for node in stage.state:
        spec = cut.ends.state[node]
        value = values[str(spec.target)]
        size = value.nbytes if isinstance(value, torch.Tensor) else None
        kind = spec.kind.name.lower()
        found.append({"name": spec.target, "kind": kind, **described(value), "bytes": size})
    return found


def _stage(program: ExportedProgram, cut: Cut, stage: Stage) -> dict[str, Any]:
    values = state_of(program)
    sizes: dict[Any, int] = {}  # by storage
    parameters = 0
    for spec in (cut.ends.state[node] for node in stage.state):
        value = values[str(spec.target)]
        if isinstance(value, torch.Tensor):
            key = storage_of(value)
            sizes[key] = max(sizes.get(key, 0), value.nbytes)
            parameters += value.numel() if spec.kind is InputKind.PARAMETER else 0
    return {
        "operations": len(stage.operations),
        "parameters": parameters,
        "state_bytes": sum(sizes.values()),
        "inputs": [
            {"name": node.name, **described(value_of(node)), "from": _source(cut, node)}
            for node in stage.inputs
        ],
        "outputs": [{"name": node.name, **described(value_of(node))} for node in stage.outputs],
        "writes": [spec.target for _, spec in stage.mutations],
    }


def _input_paths(program: ExportedProgram) -> list[str]:
    """Return the place of each input among the arguments, such as "args[0]"."""
    spec = program.call_spec.in_spec
    numbered = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    found = []
    for (kind, *rest), _ in pytree.tree_flatten_with_path(numbered)[0]:
        found.append(("args" if kind.idx == 0 else "kwargs") + pytree.keystr(tuple(rest)))
    return found


def _output_paths(program: ExportedProgram, count: int) -> list[str]:
    """Return the place of each result in what the program returns; empty for a single tensor."""
    spec = program.call_spec.out_spec
    numbered = pytree.tree_unflatten(list(range(count)), spec)
    return [pytree.keystr(path) for path, _ in pytree.tree_flatten_with_path(numbered)[0]]
