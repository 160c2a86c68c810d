"""`fxpress convert`: write the program of a file into another file, in the current format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

import fxpress
from fxpress._base.observing.text import bytes_text, printable
from fxpress._distributed.stages.writes import storages_of
from fxpress._files.archive.package import Weights
from fxpress._files.archive.replacing import named_by
from fxpress._tools.cli.inputs import example_inputs_of
from fxpress._tools.cli.loading import CommandError, options_named
from fxpress._tools.cli.output import Allowed, naming, working
from fxpress._tools.inspect.summary import summarize
from fxpress._torch import fx as torch_fx


def convert(
    source: Path,
    target: Path,
    *,
    weights: Weights,
    dtype: str | None,
    example_inputs: Path | None,
    allowed: Allowed,
) -> None:
    """Read a program and write it again; the target is replaced when the new file is complete."""
    _check_is_alone(source)
    extra: dict[str, Any] = {}
    with working(f"reading {source}"), options_named(source):
        program = fxpress.load(source, extra_files=extra, **allowed._asdict())
    if dtype is not None:
        found = getattr(torch, dtype, None)
        if not isinstance(found, torch.dtype) or not found.is_floating_point:
            raise CommandError(f"expected a floating-point dtype such as bfloat16, got {dtype!r}")
        _store_weights_as(program, found)
    if example_inputs is not None:
        program.example_inputs = example_inputs_of(example_inputs, program, allowed.allow_pickle)
    with working(f"writing {target}"):
        fxpress.save(program, str(target), extra_files=extra, weights=weights)
    sidecars = sorted(place.file for place in named_by(target))
    for written in (target, *map(target.with_name, sidecars)):
        print(printable(f"{written}: {bytes_text(written.stat().st_size)}"))


def _check_is_alone(source: Path) -> None:
    """Raise CommandError for a file with several programs, because only one would be kept."""
    with naming(source):
        summary = summarize(source)
    others = [each.name for each in summary.programs if each.name != "model"] + summary.compiled
    if others:
        raise CommandError(
            f"{source} contains {printable(others[0])!r} in addition to the program 'model', and a "
            "conversion would lose it: load the file with fxpress.archive.load_pt2"
        )


def _store_weights_as(program: ExportedProgram, dtype: torch.dtype) -> None:
    """Cast a program's floating-point weights to a dtype in place; CommandError for overflows.

    The program then casts each weight back to its old dtype before use. A weight is not changed if
    the program may write it, returns it, or passes it to a higher-order operator. Weights that
    share a storage are changed only if all of them may be changed, and have the same layout.
    """
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    kept = {names[node.name] for node in _written(program.graph) if node.name in names}
    kept |= {*signature.buffers_to_mutate.values(), *signature.parameters_to_mutate.values()}
    returned = program.graph.output_node().all_input_nodes
    kept |= {names[node.name] for node in returned if node.name in names}
    stored = _stored(program, kept, dtype)
    root = _root_entry(program.graph)
    last = placeholders[-1] if placeholders else None
    for node in placeholders:
        name = names.get(node.name)
        if name not in stored:
            continue
        was = node.meta["val"]
        with program.graph.inserting_after(last):
            last = program.graph.call_function(torch_fx.CAST, (node,), {"dtype": was.dtype})
        last.meta = {"val": was, "nn_module_stack": root}
        node.replace_all_uses_with(last, lambda user, own=last: user is not own)
        with was.fake_mode:
            node.meta["val"] = was.to(dtype)
    program.state_dict.update(stored)
    program.graph.lint()
    program.graph_module.recompile()


def _stored(
    program: ExportedProgram, kept: set[str], dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Return the weights that change, in the new dtype; tied weights stay tied."""
    groups: dict[Any, list[str]] = {}  # storage -> names of tensors
    values = {**program.constants, **program.state_dict}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            groups.setdefault(value.untyped_storage()._cdata, []).append(name)
    stored: dict[str, torch.Tensor] = {}
    for group in groups.values():
        first = values[group[0]]
        layout = (first.shape, first.stride(), first.storage_offset(), first.dtype)
        is_one = all(
            (v.shape, v.stride(), v.storage_offset(), v.dtype) == layout
            for v in (values[name] for name in group)
        )
        is_free = kept.isdisjoint(group) and all(name in program.state_dict for name in group)
        is_plain = type(first) in (torch.Tensor, torch.nn.Parameter) and not first.is_quantized
        if is_one and is_free and is_plain and first.is_floating_point() and first.dtype != dtype:
            cast = _cast(group[0], first, dtype)
            for name in group:
                value = values[name]
                stored[name] = (
                    torch.nn.Parameter(cast, value.requires_grad)
                    if isinstance(value, torch.nn.Parameter)
                    else cast
                )
    return stored


def _cast(name: str, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    with torch.no_grad():
        try:
            cast = value.detach().to(dtype)
            back = cast.to(value.dtype)
        except (NotImplementedError, RuntimeError) as error:
            raise CommandError(f"tensors cannot be cast to {dtype}: {error}") from error
        if value.is_meta or torch.equal(back.isfinite(), value.isfinite()):
            return cast
    raise CommandError(f"{dtype} cannot hold the values of {name!r}")


def _root_entry(graph: Graph) -> dict[str, Any]:
    """Return the `nn_module_stack` of a node that the root module created."""
    for node in graph.nodes:
        for key, entry in node.meta.get("nn_module_stack", {}).items():
            return {key: entry}
    return {}


def _written(graph: Graph) -> Iterator[Node]:
    """Yield inputs that nodes may write or pass to a higher-order operator, perhaps as a view."""
    for node, storage in storages_of(graph).items():
        is_given = any(
            isinstance(each.target, torch_fx.HigherOrderOperator) for each in storage.touching
        )
        if node.op == "placeholder" and (storage.writing or is_given):
            yield node
