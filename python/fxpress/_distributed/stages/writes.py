"""Find which nodes of a graph may access each storage, and which of them may write it."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping
from itertools import chain
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fxpress._distributed.stages.on_meta import Arguments, call_key, tensors_in
from fxpress._files.serde.hashing import traits_of
from fxpress._files.serde.operators import schema_of
from fxpress._graphs.unflatten.aliases import bodies_of
from fxpress._torch import fx as torch_fx
from fxpress._torch.serde import is_composite

_HOLDING = (tuple, list, dict, slice)  # arguments that may contain values
_NONE: set[Node] = set()


@dataclasses.dataclass(slots=True)
class Storage:
    """The nodes that access, or may access, the storage that a node creates."""

    touching: list[Node]  # nodes that create, read or write the storage, in graph order
    writing: list[Node] = dataclasses.field(default_factory=list)  # nodes that may write it
    # The results of the graph that may share the storage.
    results: list[Node] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class _Effects:
    """The effects of a call on the storages of its arguments."""

    names: tuple[str, ...] = ()  # the names of the call's arguments, in order
    # The arguments whose storage the result may share; None: all arguments.
    aliased: tuple[str, ...] | None = ()
    written: tuple[str, ...] | None = ()  # the arguments that the call may write; None: all
    is_composite: bool = False  # whether sizes decide if storages are shared, as for reshape
    is_new: bool = False  # whether the result may also have a new storage
    # Whether the call only reads, and its result always has a new storage.
    is_pure: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_pure", self.aliased == () and self.written == ())


def storages_of(graph: Graph, same: Mapping[Node, Node] | None = None) -> dict[Node, Storage]:
    """Return the storages of a graph, by the placeholder or operator that creates each storage.

    `same` maps a placeholder to the first placeholder with the same storage. A result that may
    share an argument's storage is treated as sharing it. An operator with unknown effects counts as
    a write to each argument.
    """
    same = {} if same is None else same
    shared: dict[Hashable, tuple[str, ...]] = {}
    known: dict[Any, _Effects] = {}
    origins: dict[Node, set[Node]] = {}  # value -> the nodes whose storage it may share
    found: dict[Node, Storage] = {}
    for node in graph.nodes:
        if node.op == "placeholder":
            origins[node] = {same.get(node, node)}
            if node not in same:
                found[node] = Storage([])
            continue
        if node.op == "get_attr":
            continue
        if node.op == "output":
            for result in node.all_input_nodes:
                for origin in origins.get(result, ()):
                    found[origin].results.append(result)
            continue
        effects = known.get(node.target) or _effects(node, known)
        for value in node.all_input_nodes:
            for origin in origins.get(value, ()):
                touching = found[origin].touching
                if not touching or touching[-1] is not node:
                    touching.append(node)
        if effects.is_pure:  # the common case
            origins[node] = {node}
            found[node] = Storage([node])
            continue
        aliased, written = effects.aliased, effects.written
        if effects.is_composite:
            aliased = _shared(node, aliased or (), shared)
        having: set[Node] = set()
        names, args = effects.names, node.args
        if len(names) < len(args):
            names += tuple(map(str, range(len(names), len(args))))
        given: Iterable[tuple[str, Any]] = zip(names, args, strict=False)
        for argument, value in chain(given, node.kwargs.items()) if node.kwargs else given:
            if isinstance(value, Node):
                reached = origins.get(value, _NONE)
            elif isinstance(value, _HOLDING):
                reached = _reached(value, origins)
            else:
                continue
            for origin in reached:
                if written is None or argument in written:
                    found[origin].writing.append(node)
            if aliased is None or argument in aliased:
                having |= reached
        origins[node] = having
        if not having or effects.is_new:
            having.add(node)
            found[node] = Storage([node])
    return found


def _shared(
    node: Node, names: tuple[str, ...], known: dict[Hashable, tuple[str, ...]]
) -> tuple[str, ...]:
    """Return the arguments whose storage the result shares; find them by a call on meta tensors."""
    key = call_key(node)
    if key not in known:
        arguments = Arguments(node)
        result = tensors_in(arguments.call())
        storages = {tensor.untyped_storage()._cdata for tensor in result}
        given = [*zip(names, arguments.args, strict=False), *arguments.kwargs.items()]
        sharing = tuple(
            name
            for name, value in given
            if any(t.untyped_storage()._cdata in storages for t in tensors_in(value))
        )
        known[key] = sharing if result else names
    return known[key]


def _reached(value: Any, origins: dict[Node, set[Node]]) -> set[Node]:
    nodes: list[Node] = []
    torch.fx.node.map_arg(value, nodes.append)
    return set().union(*(origins.get(node, _NONE) for node in nodes))


def _effects(node: Node, known: dict[Any, _Effects]) -> _Effects:
    """Return the effects of a node; `known` caches targets whose effects are always the same."""
    target = node.target
    if node.op != "call_function":
        return _Effects()
    schema = schema_of(target)
    if schema is not None:
        aliased, written, *_ = traits_of(target)
        is_overload = isinstance(target, torch_fx.OpOverload)
        known[target] = _Effects(
            tuple(argument.name for argument in schema.arguments),
            tuple(aliased),
            tuple(written),
            is_overload and bool(aliased) and is_composite(target),
        )
        return known[target]
    if not isinstance(target, torch_fx.HigherOrderOperator):
        return _Effects(aliased=None)  # a function on values, such as getitem
    bodies = list(bodies_of(node))
    if bodies and not any(map(_writes, bodies)):
        return _Effects(aliased=None, is_new=True)
    return _Effects(aliased=None, written=None, is_new=True)


def _writes(body: GraphModule) -> bool:
    """Return whether a node of a graph, or of its nested graphs, may write to a value."""
    for module in body.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            if node.op == "call_function":
                written = _effects(node, {}).written
                if written is None or written:
                    return True
    return False
