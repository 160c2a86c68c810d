"""Cut a graph into stages of nearly equal weight, in graph order."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch.fx import GraphModule, Node

from fxpress._graphs.partition.callback import SplitCallback, operations
from fxpress._graphs.partition.runs import cheapest, least_limit
from fxpress._graphs.partition.state import StateReader, byte_count, element_count

if TYPE_CHECKING:
    from torch.export import ExportGraphSignature

_SIZE = {"parameters": element_count, "bytes": byte_count}


def balanced(
    m: GraphModule,
    n: int,
    *,
    by: Literal["parameters", "bytes", "nodes"] = "parameters",
    signature: ExportGraphSignature | None = None,
    state_dict: Mapping[str, Any] | None = None,
    state_inputs: Collection[str] = (),
) -> SplitCallback:
    """Return a callback that cuts a graph into `n` stages, in graph order.

    The heaviest stage is as light as possible. Among the cuts for which this holds, each stage in
    turn is as close as possible to an equal share of the remaining weight. No stage is empty. A
    state tensor (a parameter, buffer or constant) counts once, for the first node that uses it,
    even if it has several names and users. torch has no such function.

    Args:
        m: The graph to split, as it will be passed to `split_module`.
        n: The number of stages.
        by: The weight of a node. "parameters" and "bytes" count the elements and the bytes of the
            state tensors whose first user is the node; with "nodes", each node weighs 1.
        signature: If `m` is the graph module of an exported program: the `graph_signature` of this
            program, which lists the inputs that are state.
        state_dict: The program's `state_dict`, which shows which parameters are tied.
        state_inputs: Names of further placeholders that are state. A placeholder whose metadata has
            an `nn.Parameter`, as in graphs of Dynamo and strict export, is always state.

    Returns:
        The callback for `split_module(m, None, callback)`.

    Raises:
        ValueError: If `n` is less than 1 or exceeds the number of operations, if `by` is none of
            the three values, or if `by` is not "nodes" and no node uses any state.

    Example:
        >>> from fxpress import partition
        >>> partition.balanced(graph_module, 2)
        <SplitCallback balanced(n=2, by='parameters'): 22 nodes in 2 partitions>
    """
    if by != "nodes" and by not in _SIZE:
        raise ValueError(f'balanced: `by` must be "parameters", "bytes" or "nodes", got {by!r}')
    nodes = list(operations(m))
    if not 1 <= n <= len(nodes):
        raise ValueError(
            f"balanced: n must be 1 to {len(nodes)} (the operations in the graph), got {n}"
        )
    weights = [1] * len(nodes)
    if by != "nodes":
        state = StateReader(m, signature, state_dict, state_inputs)
        weights = state_weights(m, state, by)
        if not any(weights):
            raise ValueError(
                f"balanced: no node uses any state, so there are no {by} to balance; for an"
                ' exported program pass signature=ep.graph_signature, or balance by="nodes"'
            )
    ids: dict[Node, int] = {}
    start = 0
    for stage, end in enumerate(linear_partition(weights, n)):
        ids.update(dict.fromkeys(nodes[start:end], stage))
        start = end
    return SplitCallback(ids, f"balanced(n={n}, by={by!r})")


def linear_partition(weights: list[int], n: int) -> list[int]:
    """Divide `weights` (>= 0) into `n` non-empty runs with the least maximum; return their ends."""
    before = [0, *accumulate(weights)]  # before[i]: the sum of weights[:i]
    reach = [[len(weights)] * len(weights)] * n  # each run may end at any position
    limit = least_limit(before, reach)
    ends = None if limit is None else cheapest(before, None, reach, limit)
    assert ends is not None, "there are at least as many items as runs"
    return ends


def state_weights(m: GraphModule, state: StateReader, by: str) -> list[int]:
    """Return, for each operation, the total size of its state tensors that no earlier one uses."""
    size = _SIZE[by]
    unused: dict[Node, Iterable[torch.Tensor]] = {}  # placeholder or get_attr -> its state tensors
    seen: set[int] = set()  # ids of tensors already counted; the module keeps these tensors alive
    weights: list[int] = []
    for node in m.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            unused[node] = state.state_of(node)
        elif node.op != "output":
            weight = 0
            for tensors in (
                state.state_of(node),
                *(unused.pop(source, ()) for source in node.all_input_nodes),
            ):
                for tensor in tensors:
                    if id(tensor) not in seen:
                        seen.add(id(tensor))
                        weight += size(tensor) or 0
            weights.append(weight)
    return weights
