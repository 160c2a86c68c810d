"""Values to run a stage with before there are any, to learn the shapes of what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram

from fxpress._distributed.stages.manifest import Value


def fakes_of(program: ExportedProgram) -> dict[str, Any]:
    """Return what the metadata says of each value that a stage takes, by name."""
    return {
        node.name: node.meta["val"]
        for node in program.graph.nodes
        if node.op == "placeholder" and "val" in node.meta
    }


def fill(tensors: Sequence[torch.Tensor], takes: Sequence[Value], fakes: dict[str, Any]) -> None:
    """Write to memory that is not initialized what a stage can be run with.

    Tensors become zeros, which are indices into anything. A number that the sizes of the tensors
    determine becomes that, any other becomes one.
    """
    known: dict[Any, Any] = {}
    for facts, tensor in zip(takes, tensors, strict=True):
        fake = fakes.get(facts.name)
        if isinstance(fake, torch.Tensor):
            order = facts.order or range(fake.dim())
            for dimension, size in zip(order, tensor.shape, strict=True):
                symbol = fake.shape[dimension]
                if isinstance(symbol, torch.SymInt) and symbol.node.expr.is_symbol:
                    known[symbol.node.expr] = sympy.Integer(size)
    with torch.no_grad():
        for facts, tensor in zip(takes, tensors, strict=True):
            fake = fakes.get(facts.name)
            tensor.fill_(0 if facts.type == "tensor" else _number(fake, known))


def _number(fake: Any, known: dict[Any, Any]) -> Any:
    if not isinstance(fake, (torch.SymInt, torch.SymFloat)):
        return 1
    found = fake.node.expr.xreplace(known)
    return float(found) if found.is_number else 1
