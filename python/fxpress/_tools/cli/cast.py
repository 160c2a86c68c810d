"""Store the weights of a program in another type, and cast them back where they are used."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from fxpress._base.errors import Error
from fxpress._distributed.stages.writes import storages_of
from fxpress._torch import fx as torch_fx


class CastError(Error):
    """Weights cannot be stored in a type."""


def with_weights_of(program: ExportedProgram, dtype: torch.dtype) -> None:
    """Let a program store its floating-point weights in a type.

    Each is cast to the type that it had before it is used, so that the graph computes in the types
    that it was traced with. These keep their type: weights that the program may write to, returns,
    or gives to an operator with a body, and those that share storage with another one of other
    sizes or with one of these.

    Args:
        program: the program, which is changed.
        dtype: the type.

    Raises:
        CastError: tensors cannot be cast to the type, or a weight has values that it cannot hold.
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
    """Return the weights that change, in the new type; tied ones stay tied."""
    groups: dict[Any, list[str]] = {}  # of names whose tensors share storage
    values = {**program.constants, **program.state_dict}
    for name, value in values.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            groups.setdefault(value.untyped_storage()._cdata, []).append(name)
    stored: dict[str, torch.Tensor] = {}
    for group in groups.values():
        first = values[group[0]]
        place = (first.shape, first.stride(), first.storage_offset(), first.dtype)
        is_one = all(
            (v.shape, v.stride(), v.storage_offset(), v.dtype) == place
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
            raise CastError(f"tensors cannot be cast to {dtype}: {error}") from error
        if value.is_meta or torch.equal(back.isfinite(), value.isfinite()):
            return cast
    raise CastError(f"{dtype} cannot hold the values of {name!r}")


def _root_entry(graph: Graph) -> dict[str, Any]:
    """Return what says of a node that the root module made it."""
    for node in graph.nodes:
        for key, entry in node.meta.get("nn_module_stack", {}).items():
            return {key: entry}
    return {}


def _written(graph: Graph) -> Iterator[Node]:
    """Yield the inputs of a graph whose storages its nodes may write to, or give to a body."""
    for node, storage in storages_of(graph).items():
        is_given = any(
            isinstance(each.target, torch_fx.HigherOrderOperator) for each in storage.touching
        )
        if node.op == "placeholder" and (storage.writing or is_given):
            yield node
