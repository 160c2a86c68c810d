"""Compare a stamped program with a traced one."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

_COUNTERS = ("seq_nr",)  # numbers that the process counts
_NUMBER_OF_CODE = re.compile(r"(?<=<eval_with_key>)\.\d+")  # likewise


def difference(stamped: ExportedProgram, traced: ExportedProgram) -> str | None:
    """Return how a stamped program differs from a traced one; None if it does not."""
    for what, mine, other in (
        ("signature", stamped.graph_signature, traced.graph_signature),
        ("calls of modules", stamped.module_call_graph, traced.module_call_graph),
        ("ranges", stamped.range_constraints, traced.range_constraints),
        ("constants", list(stamped.constants), list(traced.constants)),
        ("state", list(stamped.state_dict), list(traced.state_dict)),
        ("guards", stamped._guards_code, traced._guards_code),
        ("code", stamped.graph_module.code, traced.graph_module.code),
    ):
        if mine != other:
            return f"the {what}: {mine} stamped, {other} traced"
    return _of_graphs(stamped.graph, traced.graph)


def _of_graphs(stamped: Graph, traced: Graph) -> str | None:
    words = (_Words(), _Words())
    for mine, other in zip(stamped.nodes, traced.nodes, strict=True):
        for what in ("name", "op", "target", "args", "kwargs"):
            both = [w.describe(getattr(n, what)) for w, n in zip(words, (mine, other), strict=True)]
            if both[0] != both[1]:
                return f"{what} of node {other}: {both[0]} stamped, {both[1]} traced"
        if list(mine.meta) != list(other.meta):
            return f"meta of node {other}: {list(mine.meta)} stamped, {list(other.meta)} traced"
        for key in mine.meta:
            both = [w.describe(n.meta[key]) for w, n in zip(words, (mine, other), strict=True)]
            if both[0] != both[1] and key not in _COUNTERS:
                return f"{key!r} of node {other}: {both[0]} stamped, {both[1]} traced"
    return None


class _Words:
    """Describes the values of a graph so that two graphs can be compared."""

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
