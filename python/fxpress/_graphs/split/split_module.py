"""Cut a graph into submodules, as `torch.fx.passes.split_module` does."""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from fxpress import _native
from fxpress._torch import fx as torch_fx
from fxpress._torch import native_tables
from fxpress._torch.watching import operation

native_tables.fx()

log = _LOGGER = logging.getLogger("fxpress.split_module")


class Partition:
    """A partition under construction: its nodes, inputs, outputs and dependencies.

    Stands in for `torch.fx.passes.split_module.Partition`, for callers that build partitions
    themselves. `split_module` does not use this class.

    Args:
        name: the partition's id as text; the submodule is called ``submod_<name>``.

    Attributes:
        name, submod_name: the partition's id as text, and the name of the submodule.
        node_names: names of the partition's nodes, in graph order.
        inputs, outputs: names of the values that the partition receives and returns, as dict keys.
        dependencies: names of the partitions whose values this partition receives, as dict keys.
        dependents: names of the partitions that receive this one's values, as dict keys.
        graph: the graph of the submodule.
        environment: node of the original graph -> node of `graph`.
        targets: attributes of the submodule, by name.

    Example:
        >>> from fxpress.split_module import Partition
        >>> Partition("1").submod_name
        'submod_1'
    """

    def __init__(self, name: str) -> None:
        self.name: str = name
        self.submod_name = _native.submodule_name(name)
        self.node_names: list[str] = []
        self.inputs: dict[str, None] = {}
        self.outputs: dict[str, None] = {}
        self.dependencies: dict[str, None] = {}
        self.dependents: dict[str, None] = {}
        self.graph: Graph = Graph()
        self.environment: dict[Node, Node] = {}
        self.targets: dict[str, Any] = {}

    def __repr__(self) -> str:
        rows = {
            "name": self.name,
            "nodes": self.node_names,
            "inputs": self.inputs,
            "outputs": self.outputs,
            "partitions depended on": self.dependencies,
            "partition dependents": self.dependents,
        }
        return ",\n ".join(f"{title}: {value}" for title, value in rows.items())


def _get_attr_from_qualname(mod: torch.nn.Module, qualname: str) -> Any:
    """Return the attribute of `mod` at a dotted path, or raise AttributeError."""
    value: Any = mod
    for atom in qualname.split("."):
        if not hasattr(value, atom):
            raise AttributeError(f"Node target {qualname} not found!")
        value = getattr(value, atom)
    return value


def _log_code(title: str, module: GraphModule) -> None:
    if log.isEnabledFor(logging.DEBUG):
        log.debug("%s", torch_fx.lazy_format_graph_code(title, module, colored=True))


def _sizes(split: GraphModule, m: GraphModule, *_: Any, **__: Any) -> dict[str, int]:
    children = sum(1 for _ in split.children())
    return {"nodes": len(m.graph.nodes), "partitions": children}


@operation("split_module", _sizes)
def split_module(
    m: GraphModule,
    root_m: torch.nn.Module | None,
    split_callback: Callable[[Node], Any],
    qualname_map: dict[str, str] | None = None,
    keep_original_order: bool | None = False,
    keep_original_node_name: bool | None = False,
    keep_original_input_name: bool = True,
    *,
    partition_affix: str | None = None,
    tuple_return: bool = False,
) -> GraphModule:
    """Return a module with one submodule per partition of a graph, and a graph that calls them.

    Stands in for `torch.fx.passes.split_module.split_module`. `m` is not changed, except that its
    nodes get the name of their partition as the attribute ``_fx_partition``.

    Args:
        m: the module to split; any object with a `graph` and the attributes that the graph names.
        root_m: not used; accepted for compatibility.
        split_callback: called in graph order with each node except placeholders, get_attr nodes
            and the output. Returns the id of the node's partition; ids with the same `str` are the
            same partition. In graphs with autocast or grad-mode switches, the callback is called
            several times for a node, and its ids must be comparable and must not decrease.
        qualname_map: a dict to fill, for call_module nodes, with
            ``"<submodule>.<name in submodule>" -> original target``.
        keep_original_order: call the submodules in the order in which their partitions first appear
            instead of in a topological order.
        keep_original_node_name: nodes in the submodules keep their names.
        keep_original_input_name: placeholders of the submodules have the names of the values they
            receive instead of ``arg_<i>``.
        partition_affix: submodules are called ``submod_<affix>_<id>``.
        tuple_return: submodules with a single output return a tuple too.

    Returns:
        A GraphModule with children ``submod_<id>``; ``meta["partition_names"]`` is the set of
        their names.

    Raises:
        RuntimeError: partitions depend on each other in a cycle, or the callback edited the graph.
        AssertionError: autocast or grad-mode regions are malformed, or their ids decrease.
        AttributeError: a target is not an attribute of `m`.
        KeyError: a node uses a node that is defined later or is not in the graph. Or, with
            `keep_original_order`, a partition is called before a partition that it depends on.
        IndexError: the output node has no argument.

    Exceptions of the callback propagate. After any error, `m` and `qualname_map` are unchanged.

    Example:
        >>> from fxpress.split_module import split_module
        >>> stage_of = {node: i // 12 for i, node in enumerate(graph_module.graph.nodes)}
        >>> split = split_module(graph_module, None, stage_of.__getitem__)
        >>> [name for name, _ in split.named_children()]
        ['submod_0', 'submod_1']
    """
    _log_code("pre split_module", m)
    split: GraphModule = _native.split_module(
        m,
        split_callback,
        qualname_map,
        bool(keep_original_order),
        bool(keep_original_node_name),
        bool(keep_original_input_name),
        partition_affix,
        bool(tuple_return),
        torch_fx.uses_lazy_graph_modules(),
        log.debug if log.isEnabledFor(logging.DEBUG) else None,
    )
    _log_code("post split_module", split)
    return split


@operation("split_module.split_module_simple", _sizes)
def split_module_simple(
    m: GraphModule, node_to_partition: dict[Node, int], *, partition_affix: str | None = None
) -> GraphModule:
    """Cut a graph without parameters into submodules, and call them in order of first appearance.

    Stands in for `torch.fx.passes.split_module.split_module_simple`. The module and its submodules
    are torch's lazy GraphModules, but have all dicts of a module, such as `_forward_hooks`.

    Args:
        m: the module to split. Its submodules and attributes are not copied to the result.
        node_to_partition: partition id of each node except placeholders and the output.
        partition_affix: submodules are called ``submod_<affix>_<id>``.

    Raises:
        KeyError: a node has no partition, or a partition needs a value of a later partition.

    After any error, the nodes' attributes ``_fx_partition`` are unchanged.

    Example:
        >>> from fxpress.split_module import split_module_simple
        >>> flat = program.graph_module
        >>> nodes = flat.graph.find_nodes(op="call_function", target=torch.ops.aten.linear.default)
        >>> ids = {n: int(n > nodes[1]) for n in flat.graph.nodes if n.op == "call_function"}
        >>> [name for name, _ in split_module_simple(flat, ids).named_children()]
        ['submod_0', 'submod_1']
    """
    return _native.split_module_simple(m, node_to_partition, partition_affix)


def _detect_dependencies(
    m: GraphModule, node_to_partition: dict[Node, int]
) -> tuple[dict[int, Graph], dict[int, dict[str, Node]], dict[int, dict[str, Node]], list[int]]:
    """Find the dependencies of the partitions: the first step of `split_module_simple`.

    Returns:
        ``{id: empty graph}``, the inputs and the outputs as ``{id: {name: node}}``, and the list of
        ids in order of first appearance.
    """
    return _native.detect_dependencies(m, node_to_partition)


def _clone_nodes_into_partitions(
    m: GraphModule,
    partition_graphs: dict[int, Graph],
    partition_inputs: dict[int, dict[str, Node]],
    partition_outputs: dict[int, dict[str, Node]],
    seen_partitions: list[int],
) -> dict[int, dict[Node, Node]]:
    """Fill the graphs of the partitions: the second step of `split_module_simple`.

    Returns:
        ``{id: {original node: node of the partition}}``.
    """
    return _native.clone_nodes_into_partitions(
        m, partition_graphs, partition_inputs, partition_outputs, seen_partitions
    )


def _build_stitching_graph(
    m: GraphModule,
    partition_graphs: dict[int, Graph],
    partition_inputs: dict[int, dict[str, Node]],
    partition_outputs: dict[int, dict[str, Node]],
    seen_partitions: list[int],
    partition_affix: str | None = None,
) -> GraphModule:
    """Return the module that calls the partitions: the last step of `split_module_simple`."""
    return _native.build_stitching_graph(
        m, partition_graphs, partition_inputs, partition_outputs, seen_partitions, partition_affix
    )


def _make_lite_graph_module(
    graph: Graph, modules: dict[str, GraphModule] | None = None
) -> GraphModule:
    """Return a lazy GraphModule for a graph without parameters. Its children are `modules`.

    Stands in for `torch.fx.passes.split_module._make_lite_graph_module`. Unlike torch's result,
    this one has all dicts of a module, such as `_forward_hooks`.
    """
    return _native.make_lite_graph_module(graph, modules)


def _decompose_size_nodes(m: GraphModule) -> None:
    """Replace ``x.size()`` by its dimensions, because partitions cannot pass a `torch.Size`.

    Stands in for `torch.fx.passes.split_module._decompose_size_nodes`. A dynamic dimension becomes
    a node ``aten.sym_size.int(x, dim)`` after `x`; a static dimension becomes a number. In calls
    such as ``y.view(x.size())`` and ``torch.zeros(x.size())``, the dimensions become separate
    arguments. ``x.size()[i]`` becomes the dimension if `i` is a number or a slice of numbers.
    Everywhere else, a tuple of the dimensions replaces the size.
    """
    for node in m.graph.find_nodes(op="call_method", target="size"):
        if len(node.args) == 1 and not node.kwargs:
            example = node.args[0].meta.get("example_value")
            if example is not None:
                _replace_size(m.graph, node, _dimensions(m.graph, node.args[0], example))


def _dimensions(graph: Graph, tensor: Node, example: torch.Tensor) -> tuple[Node | int, ...]:
    dimensions: list[Node | int] = []
    last = tensor
    for i, size in enumerate(example.shape):
        if isinstance(size, torch.SymInt):
            with graph.inserting_after(last):
                last = graph.call_function(torch.ops.aten.sym_size.int, (tensor, i))
            last.meta["example_value"] = size
            dimensions.append(last)
        else:
            dimensions.append(size)
    return tuple(dimensions)


def _replace_size(graph: Graph, size: Node, dimensions: tuple[Node | int, ...]) -> None:
    def substitute(argument: Any) -> Any:
        return torch.fx.node.map_arg(argument, lambda n: dimensions if n is size else n)

    for user in list(size.users):
        if _is_known_item(user, size, len(dimensions)):
            _replace_item(graph, user, dimensions)
        elif dimensions and _accepts_dimensions(user, size):
            user.args = (*user.args[:-1], *dimensions)
            user.kwargs = substitute(user.kwargs)
        else:
            user.args = substitute(user.args)
            user.kwargs = substitute(user.kwargs)
    graph.erase_node(size)


def _accepts_dimensions(user: Node, size: Node) -> bool:
    """Return whether `user` is a call of torch whose only argument, except `self`, is `size`."""
    if user.op == "call_method":
        return len(user.args) == 2 and user.args[1] is size and user.args[0] is not size
    name = getattr(user.target, "__name__", "")
    is_torchs = isinstance(user.target, BuiltinFunctionType) and (
        getattr(torch, name, None) is user.target
    )
    return is_torchs and len(user.args) == 1 and user.args[0] is size


def _is_known_item(user: Node, size: Node, length: int) -> bool:
    """Return whether `user` is ``size[i]`` with a valid `i`. An invalid `i` fails at run time."""
    if user.target is not operator.getitem or len(user.args) != 2 or user.args[0] is not size:
        return False
    index = user.args[1]
    if isinstance(index, slice):
        parts = (index.start, index.stop, index.step)
        return all(part is None or isinstance(part, int) for part in parts) and index.step != 0
    return isinstance(index, int) and -length <= index < length


def _replace_item(graph: Graph, item: Node, dimensions: tuple[Node | int, ...]) -> None:
    """Replace `item`: ``size[i]`` by a dimension, and ``size[i:j]`` by a tuple of dimensions."""
    value = dimensions[item.args[1]]
    if isinstance(value, Node):
        item.replace_all_uses_with(value)
    else:
        for user in list(item.users):
            for field in ("args", "kwargs"):
                replaced = torch.fx.node.map_arg(
                    getattr(user, field), lambda n: value if n is item else n
                )
                setattr(user, field, replaced)
    graph.erase_node(item)
