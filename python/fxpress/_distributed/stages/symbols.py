"""Find the symbols of sizes that a stage has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from fxpress._distributed.stages.sizes import value_of
from fxpress._torch.decompose import pytree
from fxpress._torch.symbols import KINDS

_NUMBERS = tuple(KINDS)


def ranges_in(
    program: ExportedProgram, nodes: Iterable[Node], bodies: Iterable[Any]
) -> dict[Any, Any]:
    """Return the ranges of those symbols of a program that nodes have; of others, a load warns."""
    missing = set(program.range_constraints)
    for values in (_values(nodes), *map(_values_in, bodies)):
        for value in values:
            if not missing:
                return dict(program.range_constraints)
            missing -= _symbols(value)
    return {s: limits for s, limits in program.range_constraints.items() if s not in missing}


def _values(nodes: Iterable[Node]) -> Iterator[Any]:
    for node in nodes:
        value = value_of(node)
        yield from pytree.tree_leaves(value) if isinstance(value, (tuple, list)) else (value,)


def _values_in(body: Any) -> Iterator[Any]:
    for module in body.modules() if isinstance(body, GraphModule) else ():
        if isinstance(module, GraphModule):
            yield from _values(module.graph.nodes)


def _symbols(value: Any) -> set[Any]:
    if isinstance(value, _NUMBERS):
        return set(value.node.expr.free_symbols)
    if not isinstance(value, torch.Tensor):
        return set()
    strided = value.layout is torch.strided
    sizes = [*value.shape, *((*value.stride(), value.storage_offset()) if strided else ())]
    return set().union(*(_symbols(size) for size in sizes if type(size) is not int))
