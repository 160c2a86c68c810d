"""Cut a graph around selected operations, for compilers that run some operations eagerly."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule, Node

from fxpress._graphs.partition.callback import SplitCallback, operations

# torch has no public names for these classes, so they are found through the operator `aten.add`.
_OpOverload = type(torch.ops.aten.add.Tensor)
_OpOverloadPacket = type(torch.ops.aten.add)


def around(
    m: GraphModule,
    ops: Iterable[str | Callable[..., Any]] = (),
    *,
    where: Callable[[Node], bool] | None = None,
) -> SplitCallback:
    """Return a callback that puts each matching node, and each run of other nodes, in a partition.

    vLLM and SGLang split a model around attention in this way, to capture the other operations in
    CUDA graphs. Use the callback with `keep_original_order=True`, as they do: otherwise,
    `split_module` reorders partitions that don't depend on each other. torch has no such function.

    Compilers don't accept tuples as inputs. So if `getitem` nodes that unpack the result of a
    matching node directly follow that node, they join its partition, which then returns tensors.

    Args:
        m: The graph to split, as it will be passed to `split_module`.
        ops: The operations to match. Each is one of:

            - the function that a `call_function` node calls, or its `OpOverload`;
            - an `OpOverloadPacket`, which matches all its overloads;
            - the name of an operator: "aten::add" or "aten.add" matches all its overloads,
              "aten::add.Tensor" or "aten.add.Tensor" matches one (an unnamed one is "default");
            - the class of the module that a `call_module` node calls, a base class of it, or the
              name of the class itself;
            - the name of the method that a `call_method` node calls.

            An op that matches no node is not an error, so that one list serves many graphs.
        where: A predicate on nodes; nodes for which it is true match too.

    Returns:
        The callback for `split_module(m, None, callback, keep_original_order=True)`.

    Raises:
        TypeError: If `ops` is a single op, or has a member that is neither a name nor callable.

    Example:
        >>> from fxpress import partition
        >>> cut = partition.around(program.graph_module, ["aten::scaled_dot_product_attention"])
        >>> cut.count  # 2 attentions, and the nodes before, between and after them
        5
    """
    wanted = _wanted(ops)
    matches: dict[tuple[str, Any], bool] = {}  # (op, target) -> whether `ops` matches it
    ids: dict[Node, int] = {}
    opener: Node | None = None  # the matching node that began the partition, or None
    partition = -1
    for node in operations(m):
        target = (node.op, node.target)
        if target not in matches:
            matches[target] = not wanted.isdisjoint(_labels(m, node))
        if matches[target] or (where is not None and where(node)):
            partition += 1
            opener = node
        elif opener is not None and not _unpacks(node, opener):
            partition += 1
            opener = None
        elif partition < 0:
            partition = 0
        ids[node] = partition
    return SplitCallback(ids, f"around({_describe(wanted, where)})")


def _wanted(ops: Iterable[str | Callable[..., Any]]) -> set[str | Callable[..., Any]]:
    # `set` would split a str into characters, and an OpOverloadPacket into names of overloads.
    if isinstance(ops, str) or callable(ops):
        raise TypeError(f"around: ops must be a list of ops, got the single op {ops!r}")
    wanted = set(ops)
    for op in wanted:
        if not isinstance(op, str) and not callable(op):
            raise TypeError(f"around: each op must be a name or a callable, got {op!r}")
    return wanted


def _labels(m: GraphModule, node: Node) -> Iterator[Any]:
    """Yield all names and objects by which `ops` can refer to the operation of `node`."""
    target: Any = node.target
    if node.op == "call_module":
        module_class = type(m.get_submodule(target))
        yield module_class.__name__
        yield from module_class.__mro__
        return
    yield target
    if isinstance(target, _OpOverload):
        overload = str(target)  # aten.add.Tensor
        yield overload
        yield overload.replace(".", "::", 1)
        target = target.overloadpacket
        yield target
    if isinstance(target, _OpOverloadPacket):
        packet = str(target)  # aten.add
        yield packet
        yield packet.replace(".", "::", 1)


def _unpacks(node: Node, opener: Node) -> bool:
    return node.target is operator.getitem and node.args[0] is opener


def _describe(wanted: set[str | Callable[..., Any]], where: Callable[[Node], bool] | None) -> str:
    named = sorted(op if isinstance(op, str) else _name(op) for op in wanted)
    return ", ".join([*named, *([] if where is None else [f"where={_name(where)}"])])


def _name(function: Callable[..., Any]) -> str:
    if isinstance(function, (_OpOverload, _OpOverloadPacket)):
        return str(function)
    return getattr(function, "__name__", None) or repr(function)
