"""Find values of a graph that may share memory, so that a write to one may change others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.fx

from fxpress._torch import export as torch_export
from fxpress._torch import fx as torch_fx

# Operators that may return an argument or a view of it, which their schemas do not declare.
_UNDECLARED = frozenset(
    {
        "alpha_dropout",
        "atleast_1d",
        "atleast_2d",
        "atleast_3d",
        "broadcast_tensors",
        "cartesian_prod",
        "conj_physical",
        "dropout",
        "einsum",
        "feature_alpha_dropout",
        "feature_dropout",
        "meshgrid",
        "native_dropout",
        "sum_to_size",
        "type_as",
    }
)


def may_alias(node: torch.fx.Node) -> bool:
    """Return whether a result of `node` may be an argument of `node`, or a view of an argument."""
    target = node.target
    if isinstance(target, torch_fx.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        declared = any(result.alias_info is not None for result in target._schema.returns)
        undeclared = namespace == "aten" and name in _UNDECLARED
        return declared or undeclared or target in torch_export.INNER_TENSOR_TARGETS
    if isinstance(target, torch_fx.HigherOrderOperator):
        return any(_passes_on(body) for body in bodies_of(node))
    return True


def bodies_of(node: torch.fx.Node) -> Iterator[torch.fx.GraphModule]:
    """Yield the graph modules that a higher-order operator runs."""
    owner = node.graph.owning_module
    for argument in node.all_input_nodes:
        if argument.op != "get_attr" or owner is None:
            continue
        body: Any = owner
        for part in str(argument.target).split("."):
            body = getattr(body, part, None)
        if isinstance(body, torch.fx.GraphModule):
            yield body


def _passes_on(body: torch.fx.GraphModule) -> bool:
    """Return whether an output of the graph may share memory with one of its inputs."""
    inputs = [node for node in body.graph.nodes if node.op == "placeholder"]
    return any(node.op == "output" for node in readers(inputs))


def readers(values: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the nodes that read one of `values`, or a value that may share memory with one."""
    found: set[torch.fx.Node] = set()
    pending = list(values)
    while pending:
        for user in pending.pop().users:
            if user in found:
                continue
            found.add(user)
            if user.op != "output" and may_alias(user):
                pending.append(user)
    return found
