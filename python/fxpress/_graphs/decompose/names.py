"""Store the names and users of nodes in decomposed programs with symbolic sizes.

The number in a name such as "mul_2" also counts nodes that torch removes: nodes for sizes that were
only compared. Their count depends on caches of fake tensors, which each trace fills. So fxpress
stores the names from a program's first trace. Equal programs with equal caches get these names.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import weakref
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature
from torch.fx import Graph, GraphModule, Node

from fxpress import _native
from fxpress._graphs.decompose.values import UnsafeError
from fxpress._graphs.trace.proxy_calls import PLAIN_TYPES
from fxpress._torch import symbols
from fxpress._torch.decompose_whole import shape_env_of

_MOST_PROGRAMS = 64  # the maximum length of `KnownNames._shared`

_any_names: contextvars.ContextVar[bool] = contextvars.ContextVar("any_names", default=False)


def any_names(enabled: bool = True) -> _native.Block:
    """Return a context manager in which names of nodes with symbolic sizes may differ from torch's.

    In torch, these names depend on caches that earlier exports filled. To find them, fxpress has to
    trace the first of several equal programs in full. In the block, it builds this program faster,
    from traces of single calls. The nodes and their order, meta and values are equal to torch's.
    Names of nodes and outputs may have other numbers than in torch, and a node may list its users
    in another order. torch has no such function.

    Args:
        enabled: with False, decomposed programs in the block have torch's names.

    Returns:
        A context manager for one thread or task.

    Example:
        >>> from fxpress import decompose
        >>> with decompose.any_names():
        ...     decomposed = decompose.run_decompositions(program)
    """
    return _native.Block(functools.partial(_any_names.set, enabled), _any_names.reset)


class Names:
    """The names of the nodes of a traced graph, and the order of each node's users.

    Attributes:
        reason: why an equal program could not be built from templates; empty if none failed.
    """

    def __init__(self, graph: Graph) -> None:
        self.reason = ""
        numbers = {node: number for number, node in enumerate(graph.nodes)}
        self._kinds = _kinds(graph)
        self._names = [node.name for node in graph.nodes]
        self._users = {
            number: [numbers[user] for user in node.users]
            for node, number in numbers.items()
            if len(node.users) > 1
        }
        self._taken = set(graph._graph_namespace._used_names)
        self._counts = dict(graph._graph_namespace._base_count)

    def give(self, graph: Graph) -> dict[str, str] | None:
        """Rename the nodes of `graph`; return {old name: new name}, or None if nodes differ."""
        nodes = list(graph.nodes)
        if _kinds(graph) != self._kinds:
            return None
        users = {
            nodes[number]: [nodes[user] for user in order] for number, order in self._users.items()
        }
        if any(node.users.keys() != {*order} for node, order in users.items()):
            return None
        for node, order in users.items():
            if list(node.users) != order:
                for user in order:
                    node.users[user] = node.users.pop(user)
        new_names = {}
        space = graph._graph_namespace
        for node, name in zip(nodes, self._names, strict=True):
            new_names[node.name] = name
            node.name = space._obj_to_name[node] = name
        space._used_names.clear()
        space._used_names.update(self._taken)
        space._base_count.clear()
        space._base_count.update(self._counts)
        return new_names


def _kinds(graph: Graph) -> list[tuple[str, Any]]:
    return [(node.op, node.target) for node in graph.nodes]


class _History:
    """The history of the decompositions of all programs that have the same ShapeEnv.

    Attributes:
        key: the ShapeEnv's state before the first decomposition, then the Names of each program.
        is_exact: whether all Names in `key` come from traces of torch.
        traces: how many traces of these programs have begun.
    """

    def __init__(self, shape_env: Any) -> None:
        self.key: tuple[Any, ...] = (symbols.state_of_caches(shape_env),)
        self.is_exact = True
        self.traces = 0


_histories: weakref.WeakKeyDictionary[Any, _History] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


class KnownNames:
    """The Names of all programs that were decomposed with one decomposition table."""

    def __init__(self) -> None:
        self._shared: dict[Any, Names] = {}  # (key of a history, content of a program) -> Names
        # ShapeEnv -> {content of a program: its Names}
        self._own: weakref.WeakKeyDictionary[Any, dict[Any, Names]] = weakref.WeakKeyDictionary()

    def of(self, program: ExportedProgram, options: Any) -> Naming | None:
        """Return the Naming for a program, or None if it has no symbolic sizes."""
        shape_env = shape_env_of(program.graph_module) if program.range_constraints else None
        if not symbols.has_symbols(shape_env):
            return None
        with _lock:
            history = _histories.get(shape_env)
            if history is None:
                history = _histories[shape_env] = _History(shape_env)
            own = self._own.setdefault(shape_env, {})
        return Naming(self._shared, own, history, (options, _content(program)))

    def forget(self) -> None:
        """Free the Names that programs with different ShapeEnvs share."""
        self._shared.clear()


class Naming:
    """Names the nodes of one decomposed program.

    Attributes:
        known: the Names for the nodes; None if no equal program was traced before.
        is_free: whether nodes may have other names than in torch if `known` is None.
        is_first: True if no trace with the program's ShapeEnv has begun before.
    """

    def __init__(
        self, shared: dict[Any, Names], own: dict[Any, Names], history: _History, content: Any
    ) -> None:
        self._shared, self._own, self._history, self._content = shared, own, history, content
        self._key = (history.key, content)
        self.known = own.get(content) or shared.get(self._key)
        self.is_first = history.traces == 0
        self.is_free = _any_names.get()

    def to_check(self, graph: Graph) -> Naming:
        """Return the Naming of a full trace that checks `graph`, which templates have built."""
        if not (self.is_first or self.known is None):
            return self
        naming = Naming({}, {}, self._history, self._content)
        naming.known = Names(graph) if self.known is None else None
        return naming

    def instantiated(self, graph: Graph) -> None:
        """Name a graph that was built from templates; UnsafeError: a full trace had other nodes."""
        if self.known is None:
            self._history.is_exact = False
            return
        if self.known.give(graph) is None:
            raise UnsafeError("an earlier full trace of an equal program gave different nodes")
        self._note(self.known, is_exact=False)

    def begin(self) -> int:
        """Count a new trace with the program's ShapeEnv; return its number, from 1."""
        with _lock:
            self._history.traces += 1
            return self._history.traces

    def traced(self, module: GraphModule, signature: ExportGraphSignature, number: int) -> None:
        """Rename the nodes of trace `number` by `known`; if `known` is None, store their names."""
        if self.known is not None:
            new_names = self.known.give(module.graph) or {}
            for spec in signature.output_specs:
                spec.arg.name = new_names.get(spec.arg.name, spec.arg.name)
            module.recompile()
            self._note(self.known, is_exact=True)
            return
        self.known = Names(module.graph)
        is_exact = self._history.is_exact and self._history.traces == number
        if is_exact and self._key[0] == self._history.key:
            with _lock:
                self._shared[self._key] = self.known
                while len(self._shared) > _MOST_PROGRAMS:
                    self._shared.pop(next(iter(self._shared)))
        self._note(self.known, is_exact=is_exact)

    def _note(self, names: Names, *, is_exact: bool) -> None:
        with _lock:
            if self._own.setdefault(self._content, names) is names:
                self._history.is_exact &= is_exact
                if names not in self._history.key:
                    self._history.key += (names,)


def _content(program: ExportedProgram) -> Any:
    """Return a key of all contents of a program that its trace depends on, except its ShapeEnv."""
    numbers: dict[Any, int] = {}
    signature = program.graph_signature
    tensors = {**program.constants, **program.state_dict}
    state = [tensors.get(spec.target or "") for spec in signature.input_specs]
    call = program.module_call_graph[0].signature if program.module_call_graph else None
    return (
        _graph_content(program.graph_module, numbers),
        tuple((s.kind, type(s.arg), s.target, s.persistent) for s in signature.input_specs),
        tuple((s.kind, type(s.arg), s.target) for s in signature.output_specs),
        tuple(_described(t, numbers) for t in state),
        None if call is None else (repr(call.in_spec), tuple(call.forward_arg_names or ())),
    )


def _graph_content(module: GraphModule, numbers: dict[Any, int]) -> Any:
    content: list[Any] = []
    for number, node in enumerate(module.graph.nodes):
        numbers[node] = number
        content += (node.op, node.name, node.target)
        content += (_described(node.args, numbers), _described(node.kwargs, numbers))
        if node.op == "placeholder":
            content.append(_described(node.meta.get("val"), numbers))
    for name, child in module.named_children():
        if isinstance(child, GraphModule):
            content += (name, _graph_content(child, {}))
    return tuple(content)


def _described(value: Any, numbers: dict[Any, int]) -> Any:
    """Return a hashable key of `value`; `numbers` maps nodes, SymNodes and storages to numbers."""
    kind = type(value)
    if kind is Node:
        return Node, numbers[value]
    if kind in symbols.KINDS:
        node = value.node
        return kind, node._expr, numbers.setdefault(node, len(numbers))
    if isinstance(value, (tuple, list)):
        return tuple, tuple([_described(item, numbers) for item in value])
    if isinstance(value, dict):
        return dict, tuple([(key, _described(item, numbers)) for key, item in value.items()])
    if isinstance(value, torch.Tensor):
        facts = (value.dtype, value.device, value.layout, value.requires_grad)
        if value.layout is not torch.strided:
            return kind, facts, _described(value.shape, numbers)
        geometry = (value.shape, value.stride(), value.storage_offset())
        storage = value.untyped_storage()._cdata
        number = numbers.setdefault(storage, len(numbers))
        return kind, facts, _described(geometry, numbers), number
    return (kind, value) if kind in PLAIN_TYPES else (kind, repr(value))
