"""Find which nodes of a graph may touch which storages, and which of them write."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fxpress._serde.hashing import traits_of
from fxpress._serde.operators import schema_of
from fxpress._stages.on_meta import Arguments, tensors_in
from fxpress._torch import fx as torch_fx
from fxpress._torch.serde import is_composite


@dataclasses.dataclass
class Storage:
    """What nodes do with the storage of a value, or with one that may be it.

    Attributes:
        touching: nodes that make it, read it or write it, in the order of the graph.
        writing: those that may write it.
        results: the results of the graph that may have it.
    """

    touching: list[Node] = dataclasses.field(default_factory=list)
    writing: list[Node] = dataclasses.field(default_factory=list)
    results: list[Node] = dataclasses.field(default_factory=list)


def storages_of(graph: Graph) -> dict[Node, Storage]:
    """Return the storages of a graph by the node that makes each: a placeholder or an operator.

    An operator whose result may share the storage of an argument counts for the argument's. An
    operator that is given graphs may write to all that it is given if they write to anything, and
    its result may be new or share any of it. One of whose effects nothing is known may write to all
    of it.
    """
    known: dict[Any, list[str]] = {}
    origins: dict[Node, set[Node]] = {}  # of a value: the nodes whose storage it may share
    found: dict[Node, Storage] = {}
    for node in graph.nodes:
        if node.op == "get_attr":
            continue
        if node.op == "output":
            for result in node.all_input_nodes:
                for origin in origins.get(result, ()):
                    found[origin].results.append(result)
            continue
        given = {argument: set(_reached(value, origins)) for argument, value in _given(node)}
        aliased, written = _effects(node)
        if aliased and isinstance(node.target, torch_fx.OpOverload) and is_composite(node.target):
            aliased = _shared(node, aliased, known)
        for argument, reached in given.items():
            for origin in reached:
                storage = found[origin]
                if not storage.touching or storage.touching[-1] is not node:
                    storage.touching.append(node)
                if written is None or argument in written:
                    storage.writing.append(node)
        origins[node] = {
            origin
            for argument, reached in given.items()
            if aliased is None or argument in aliased
            for origin in reached
        }
        if not origins[node] or isinstance(node.target, torch_fx.HigherOrderOperator):
            origins[node].add(node)
            found[node] = Storage([node] if node.op != "placeholder" else [])
    return found


def _given(node: Node) -> list[tuple[str, Any]]:
    """Return the arguments of a node by the names of its schema; by position where it has none."""
    schema = schema_of(node.target) if node.op == "call_function" else None
    names = [argument.name for argument in schema.arguments] if schema is not None else []
    names += [str(number) for number in range(len(names), len(node.args))]
    return [*zip(names, node.args, strict=False), *node.kwargs.items()]


def _shared(node: Node, names: list[str], known: dict[Any, list[str]]) -> list[str]:
    """Return the arguments whose storage the result of an operator has for the sizes at hand.

    The schema of an operator that is made of others does not say.
    """
    arguments = Arguments(node)
    if arguments.key not in known:
        result = tensors_in(arguments.call())
        storages = {tensor.untyped_storage()._cdata for tensor in result}
        given = [*zip(names, arguments.args, strict=False), *arguments.kwargs.items()]
        sharing = [
            name
            for name, value in given
            if any(t.untyped_storage()._cdata in storages for t in tensors_in(value))
        ]
        known[arguments.key] = sharing if result else names
    return known[arguments.key]


def _reached(value: Any, origins: dict[Node, set[Node]]) -> list[Node]:
    nodes: list[Node] = []
    torch.fx.node.map_arg(value, nodes.append)
    return [origin for node in nodes for origin in origins.get(node, ())]


def _effects(node: Node) -> tuple[list[str] | None, list[str] | None]:
    """Return the arguments whose storage the result may share, and those written; None: any."""
    if node.op != "call_function":
        return [], []
    if schema_of(node.target) is not None:
        aliased, written, *_ = traits_of(node.target)
        return aliased, written
    if not isinstance(node.target, torch_fx.HigherOrderOperator):
        return None, []  # a function on values, such as getitem
    bodies = _bodies(node)
    if bodies and not any(map(_writes, bodies)):
        return None, []
    return None, None


def _bodies(node: Node) -> list[GraphModule]:
    root = node.graph.owning_module
    names = [str(each.target) for each in node.all_input_nodes if each.op == "get_attr"]
    found = [getattr(root, name, None) for name in names]
    return [body for body in found if isinstance(body, GraphModule)]


def _writes(body: GraphModule) -> bool:
    """Return whether a node of a graph, or of a graph in it, may write to anything."""
    for module in body.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if node.op == "call_function":
                _, written = _effects(node)
                if written is None or written:
                    return True
    return False
