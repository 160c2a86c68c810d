"""Define `check_templates`, which compares decomposed programs with full traces of torch."""

from __future__ import annotations

import contextvars
import functools
import os
import re
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from fxpress import _native

_checks: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "templates", default=os.environ.get("FXPRESS_CHECK_TEMPLATES") == "1"
)


def checks() -> bool:
    """Return whether `check_templates` is active in this thread or task."""
    return _checks.get()


def check_templates(enabled: bool = True) -> _native.Block:
    """Return a context manager in which decompositions are compared with full traces of torch.

    A template is the trace of one call, from which fxpress creates the nodes of equal calls. In the
    block, torch also traces each program that uses templates (joint graphs use none). A
    decomposition compares the results, and returns torch's. `FXPRESS_CHECK_TEMPLATES=1` in the
    environment has the same effect on the entire process. torch has no such function.

    Args:
        enabled: with False, decompositions in the block are not compared.

    Returns:
        A context manager for one thread or task. In its block, a decomposition raises
        `InternalError` if the results differ. The message has the first difference.

    Example:
        >>> from fxpress import decompose
        >>> with decompose.check_templates():
        ...     decomposed = decompose.run_decompositions(program)
    """
    return _native.Block(functools.partial(_checks.set, enabled), _checks.reset)


_COUNTERS = ("seq_nr",)  # keys of meta with a counter of the process, which always differ
_NUMBER_OF_CODE = re.compile(r"(?<=<eval_with_key>)\.\d+")  # the number in a generated file's name


def difference(instantiated: ExportedProgram, traced: ExportedProgram) -> str | None:
    """Return the first difference between fxpress's decomposed program and torch's, or None."""
    lengths = [len(program.graph.nodes) for program in (instantiated, traced)]
    if lengths[0] != lengths[1]:
        return f"the number of nodes: {lengths[0]} instantiated, {lengths[1]} traced"
    for name, ours, theirs in (
        ("signature", _signature(instantiated), _signature(traced)),
        ("module call graph", _calls(instantiated), _calls(traced)),
        ("range constraints", instantiated.range_constraints, traced.range_constraints),
        ("names of constants", list(instantiated.constants), list(traced.constants)),
        ("names of state", list(instantiated.state_dict), list(traced.state_dict)),
        ("guards", instantiated._guards_code, traced._guards_code),
    ):
        if ours != theirs:
            return f"the {name}: {ours} instantiated, {theirs} traced"
    return _graph_difference(instantiated.graph, traced.graph)


def _argument(argument: Any) -> Any:
    return type(argument), getattr(argument, "name", ""), getattr(argument, "value", None)


def _signature(program: ExportedProgram) -> list[Any]:
    signature = program.graph_signature
    return [
        (spec.kind, _argument(spec.arg), spec.target, getattr(spec, "persistent", None))
        for spec in (*signature.input_specs, *signature.output_specs)
    ]


def _calls(program: ExportedProgram) -> list[Any]:
    calls: list[Any] = []
    for entry in program.module_call_graph:
        calls.append(entry.fqn)
        if entry.signature is not None:
            s = entry.signature
            calls += map(_argument, (*s.inputs, *s.outputs))
            calls += [s.in_spec, s.out_spec, s.forward_arg_names]
    return calls


def _graph_difference(instantiated: Graph, traced: Graph) -> str | None:
    descriptions = (_Descriptions(), _Descriptions())
    for nodes in zip(instantiated.nodes, traced.nodes, strict=True):
        users = [[user.name for user in node.users] for node in nodes]
        if users[0] != users[1]:
            return f"users of node {nodes[1]}: {users[0]} instantiated, {users[1]} traced"
        for field in ("name", "op", "target", "args", "kwargs"):
            values = [getattr(node, field) for node in nodes]
            both = [d.describe(value) for d, value in zip(descriptions, values, strict=True)]
            if both[0] != both[1]:
                return f"{field} of node {nodes[1]}: {both[0]} instantiated, {both[1]} traced"
        keys = [list(node.meta) for node in nodes]
        if keys[0] != keys[1]:
            return f"meta of node {nodes[1]}: {keys[0]} instantiated, {keys[1]} traced"
        for key in keys[0]:
            both = [d.describe(node.meta[key]) for d, node in zip(descriptions, nodes, strict=True)]
            if both[0] != both[1] and key not in _COUNTERS:
                return f"{key!r} of node {nodes[1]}: {both[0]} instantiated, {both[1]} traced"
    return None


class _Descriptions:
    """Describes the values of one graph; the descriptions of equivalent graphs are equal."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}

    def describe(self, value: Any) -> Any:
        """Return a comparable description of `value`. It has numbers in place of storages."""
        if isinstance(value, Node):
            return f"%{value.name}"
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, (list, tuple)):
            return [type(value).__name__, *map(self.describe, value)]
        if isinstance(value, dict):
            return [(key, self.describe(item)) for key, item in value.items()]
        if hasattr(value, "node_info"):
            info = value.node_info
            source = None if info is None else (info.name, info.target)
            return [source, value.pass_name, value.action, self.describe(value.from_node)]
        return (type(value).__name__, _NUMBER_OF_CODE.sub("", repr(value)))

    def _tensor(self, value: torch.Tensor) -> Any:
        facts = [type(value), value.shape, value.dtype, value.device, value.layout]
        if value.layout is torch.strided:
            storage = value.untyped_storage()._cdata
            number = self._storages.setdefault(storage, len(self._storages))
            facts += [value.stride(), value.storage_offset(), number]
        return [*map(str, facts), value.requires_grad]
