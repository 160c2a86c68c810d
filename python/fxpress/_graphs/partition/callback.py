"""Define the callback that `around`, `balanced` and `by_module` return: {node: partition id}."""

from __future__ import annotations

from collections.abc import Iterator

from torch.fx import GraphModule, Node

# `split_module` does not call the callback for nodes with these ops.
_UNASSIGNED = frozenset({"placeholder", "get_attr", "output"})


class SplitCallback(dict[Node, int]):
    """A callback for `split_module`, with the partition id of each node computed in advance.

    It is a `dict`, and a call of it is `dict.__getitem__`, so that `split_module` runs no Python
    bytecode for a node. If a graph has no `get_attr` nodes, `split_module_simple` accepts it too.
    torch has no such class.

    Args:
        ids: The partition id of each node except placeholders, `get_attr` nodes and the output. Ids
            run from 0 without gaps.
        rule: How the ids were assigned, such as "balanced(n=2)", for `repr` and for errors.

    Example:
        >>> from fxpress.partition import SplitCallback
        >>> nodes = [n for n in graph_module.graph.nodes if n.op.startswith("call")]
        >>> SplitCallback({node: i // 11 for i, node in enumerate(nodes)}, "by elevens")
        <SplitCallback by elevens: 22 nodes in 2 partitions>
    """

    __slots__ = ("count", "rule")

    count: int
    """The number of partitions. Their ids are 0 to count - 1."""

    rule: str
    """How the ids were assigned, usually the call that created this object."""

    def __init__(self, ids: dict[Node, int], rule: str) -> None:
        super().__init__(ids)
        self.count = len(set(ids.values()))
        self.rule = rule

    __call__ = dict.__getitem__

    @property
    def ids(self) -> dict[Node, int]:
        """Return this object, which maps nodes to partition ids."""
        return self

    def __missing__(self, node: object) -> int:
        raise KeyError(
            f"{self.rule} does not assign a partition to {node!r}, which is not an operation of "
            "the graph for which this callback was created"
        )

    def __repr__(self) -> str:
        return f"<SplitCallback {self.rule}: {len(self)} nodes in {self.count} partitions>"


def operations(m: GraphModule) -> Iterator[Node]:
    """Return the nodes of `m` that can be in a partition, in graph order."""
    return (node for node in m.graph.nodes if node.op not in _UNASSIGNED)
