"""Compare two splits, before a benchmark times them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node


def graph_modules(split: GraphModule) -> list[GraphModule]:
    """Return the GraphModules that splitting creates: the split module and its partitions."""
    names = _created(split)
    return [split, *(child for name, child in split.named_children() if name in names)]


def assert_same_split(
    ours: GraphModule,
    theirs: GraphModule,
    inputs: tuple[torch.Tensor, ...],
) -> None:
    """Assert that two splits are equal, node by node.

    Args:
        ours, theirs: results of splitting one module.
        inputs: the arguments for calling both and comparing the outputs.

    Raises:
        AssertionError: they differ; the message names the location.
    """
    assert list(ours._modules) == list(theirs._modules), "children"
    pairs = zip(graph_modules(ours), graph_modules(theirs), strict=True)
    for mine, other in pairs:
        assert_same_graph(mine.graph, other.graph)
        assert mine.code == other.code, f"code: {mine.code}\n{other.code}"
    # Modules of torch's split_module_simple lack tables that state_dict() needs.
    assert _state_keys(ours) == _state_keys(theirs), "keys of the state"
    with torch.no_grad():
        assert_same_output(ours(*inputs), theirs(*inputs))


def _created(split: GraphModule) -> set[str]:
    return {n.target for n in split.graph.find_nodes(op="call_module")}


def _state_keys(module: torch.nn.Module) -> list[str]:
    def walk(prefix: str, part: torch.nn.Module) -> Iterator[str]:
        hidden = part._non_persistent_buffers_set
        yield from (prefix + k for k in part._parameters)
        yield from (prefix + k for k in part._buffers if k not in hidden)
        for name, child in part._modules.items():
            yield from walk(f"{prefix}{name}.", child)

    return list(walk("", module))


def assert_same_graph(ours: Graph, theirs: Graph, *, with_provenance: bool = True) -> None:
    """Assert that two graphs are equal, node by node.

    Args:
        with_provenance: compare `from_node` too, whose records may contain the ids of the graphs.
    """
    for mine, other in zip(ours.nodes, theirs.nodes, strict=True):
        _assert_same_node(mine, other, set() if with_provenance else {"from_node"})


def _assert_same_node(ours: Node, theirs: Node, without: set[str]) -> None:
    at = f"{theirs.op} {theirs.name}"
    assert (ours.op, ours.name) == (theirs.op, theirs.name), f"{at}: {ours.op} {ours.name}"
    assert ours.target is theirs.target or ours.target == theirs.target, f"{at}: target"
    for field in ("args", "kwargs"):
        mine, other = _by_name(getattr(ours, field)), _by_name(getattr(theirs, field))
        assert _same_value(mine, other), f"{at}: {field}: {mine} != {other}"
    assert [u.name for u in ours.users] == [u.name for u in theirs.users], f"{at}: users"
    assert ours.type == theirs.type, f"{at}: type"
    assert list(ours.meta) == list(theirs.meta), f"{at}: keys of meta"
    for key in ours.meta.keys() - without:
        assert _same_value(ours.meta[key], theirs.meta[key]), f"{at}: meta[{key!r}]"


class _Named(str):
    """The name of a node, as a type that differs from a string argument."""


def _by_name(argument: Any) -> Any:
    return torch.fx.node.map_arg(argument, lambda node: _Named(node.name))


def _same_value(ours: Any, theirs: Any) -> bool:
    """Return whether two values are one object, or equal and of one type, also in containers."""
    if ours is theirs:
        return True
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, list | tuple):
        return len(ours) == len(theirs) and all(map(_same_value, ours, theirs))
    if isinstance(ours, Mapping):
        return list(ours) == list(theirs) and all(_same_value(ours[k], theirs[k]) for k in ours)
    if isinstance(ours, torch.Tensor):
        return bool(torch.equal(ours, theirs))
    if isinstance(ours, float) and math.isnan(ours):
        return math.isnan(theirs)
    return bool(ours == theirs)


def assert_same_output(ours: Any, theirs: Any) -> None:
    """Assert that two results are equal, bit for bit."""
    pairs = zip(
        torch.utils._pytree.tree_leaves(ours), torch.utils._pytree.tree_leaves(theirs), strict=True
    )
    for i, (mine, other) in enumerate(pairs):
        assert _same_value(mine, other), f"output {i} differs"
