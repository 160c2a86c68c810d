"""Compare programs that use templates with a full trace, on request."""

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
from fxpress._torch import decompose as compat
from fxpress._torch import decompose_whole

_checks: contextvars.ContextVar[bool] = contextvars.ContextVar(
    "templates", default=os.environ.get("FXPRESS_CHECK_TEMPLATES") == "1"
)


def checks() -> bool:
    """Return whether programs are compared."""
    return _checks.get()


class FakeResults:
    """torch's cache of fake tensors when a decomposition begins.

    Two decompositions in one process give equal tensors only if both begin with the same cache.
    """

    def __init__(self, program: ExportedProgram) -> None:
        self._mode = decompose_whole.fake_mode_of(program.graph_module)
        self._cached = compat.cached_results(self._mode)

    def restore(self) -> None:
        """Restore the cache."""
        compat.restore_cached_results(self._mode, self._cached)


def check_templates(enabled: bool = True) -> _native.Block:
    """Return a context manager in which programs that use templates are also traced in full.

    The full trace uses no templates and none of fxpress's replacements for speed, and the two
    results are compared. Programs without an instantiated call, such as joint graphs, are not
    compared. The environment variable `FXPRESS_CHECK_TEMPLATES=1` has the same effect on the entire
    process. torch has no such function.

    Args:
        enabled: False: do not compare programs.

    Returns:
        A context manager for one thread or task. A decomposition in it raises `InternalError` with
        the first difference.

    Example:
        >>> from fxpress import decompose
        >>> with decompose.check_templates():
        ...     decomposed = decompose.run_decompositions(program)
    """
    return _native.Block(functools.partial(_checks.set, enabled), _checks.reset)


_COUNTERS = ("seq_nr",)  # counters of the process
_NUMBER_OF_CODE = re.compile(r"(?<=<eval_with_key>)\.\d+")  # likewise


def difference(instantiated: ExportedProgram, traced: ExportedProgram) -> str | None:
    """Return how a program from templates differs from a traced one; None if it does not."""
    lengths = [len(program.graph.nodes) for program in (instantiated, traced)]
    if lengths[0] != lengths[1]:
        return f"the number of nodes: {lengths[0]} instantiated, {lengths[1]} traced"
    for what, mine, other in (
        ("signature", _signature(instantiated), _signature(traced)),
        ("calls of modules", _calls(instantiated), _calls(traced)),
        ("ranges", instantiated.range_constraints, traced.range_constraints),
        ("constants", list(instantiated.constants), list(traced.constants)),
        ("state", list(instantiated.state_dict), list(traced.state_dict)),
        ("guards", instantiated._guards_code, traced._guards_code),
    ):
        if mine != other:
            return f"the {what}: {mine} instantiated, {other} traced"
    return _of_graphs(instantiated.graph, traced.graph)


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


def _of_graphs(instantiated: Graph, traced: Graph) -> str | None:
    words = (_Words(), _Words())
    for mine, other in zip(instantiated.nodes, traced.nodes, strict=True):
        if (users := [[user.name for user in n.users] for n in (mine, other)])[0] != users[1]:
            return f"users of node {other}: {users[0]} instantiated, {users[1]} traced"
        for what in ("name", "op", "target", "args", "kwargs"):
            both = [w.describe(getattr(n, what)) for w, n in zip(words, (mine, other), strict=True)]
            if both[0] != both[1]:
                return f"{what} of node {other}: {both[0]} instantiated, {both[1]} traced"
        if list(mine.meta) != list(other.meta):
            return (
                f"meta of node {other}: {list(mine.meta)} instantiated, {list(other.meta)} traced"
            )
        for key in mine.meta:
            both = [w.describe(n.meta[key]) for w, n in zip(words, (mine, other), strict=True)]
            if both[0] != both[1] and key not in _COUNTERS:
                return f"{key!r} of node {other}: {both[0]} instantiated, {both[1]} traced"
    return None


class _Words:
    """Descriptions of a graph's values, to compare two graphs."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}

    def describe(self, value: Any) -> Any:
        """Return a description; storages are numbered in the order of their use."""
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
            place = None if info is None else (info.name, info.target)
            return [place, value.pass_name, value.action, self.describe(value.from_node)]
        return (type(value).__name__, _NUMBER_OF_CODE.sub("", repr(value)))

    def _tensor(self, value: torch.Tensor) -> Any:
        seen = [type(value), value.shape, value.dtype, value.device, value.layout]
        if value.layout is torch.strided:
            storage = value.untyped_storage()._cdata
            number = self._storages.setdefault(storage, len(self._storages))
            seen += [value.stride(), value.storage_offset(), number]
        return [*map(str, seen), value.requires_grad]
