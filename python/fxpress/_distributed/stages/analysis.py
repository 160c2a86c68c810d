"""Find the operations of a program, and the storages that they access."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, GraphModule, Node

from fxpress._distributed.stages.ends import Ends, state_of, storage_of
from fxpress._distributed.stages.writes import Storage, storages_of
from fxpress._files.tensors.copies import sharing
from fxpress._graphs.partition.callback import SplitCallback, operations


@dataclasses.dataclass(frozen=True)
class Analysis:
    """The operations of a program's top-level graph, and the storages that they access."""

    program: ExportedProgram
    operations: list[Node]  # in the order of `operations_of`
    numbers: dict[Node, int]  # operation -> its position in the order
    # For each operation: its input nodes, and unused state that its stage keeps.
    sources: list[list[Node]]
    ends: Ends  # the inputs, state and results of the program
    storages: dict[Node, Storage]  # node -> the storage that it creates
    same: dict[Node, Node]  # a placeholder of state -> the first placeholder with its storage


def analyze(program: ExportedProgram) -> Analysis:
    """Return the operations of a program, and their storages."""
    nodes = operations_of(program.graph_module)
    numbers = {node: number for number, node in enumerate(nodes)}
    sources = [node.all_input_nodes for node in nodes]
    ends = Ends(program)
    for node, number in unused_state(program, ends, numbers) if nodes else ():
        sources[number].append(node)
    same = _same_storages(program, ends)
    storages = storages_of(program.graph, same)
    if nodes != list(operations(program.graph_module)):
        for storage in storages.values():
            storage.touching.sort(key=numbers.__getitem__)
    return Analysis(program, nodes, numbers, sources, ends, storages, same)


def _same_storages(program: ExportedProgram, ends: Ends) -> dict[Node, Node]:
    """Map each placeholder of shared state to the first placeholder with the same storage."""
    values, nodes = state_of(program), list(ends.state)
    groups = sharing([values.get(str(ends.state[node].target)) for node in nodes])
    return {nodes[i]: nodes[first] for first, *others in groups for i in others}


def operations_of(module: GraphModule) -> list[Node]:
    """Return the operations in order; move each copy at the graph's end to the copied operation."""
    nodes = list(operations(module))
    # At the graph's end, export appends nodes that copy values to buffers. In that order, one stage
    # would have to contain the copied operation, the copy and all operations between them.
    copies: dict[Node, list[Node]] = {}
    last = list(_last_copies(module.graph))
    for node in reversed(last):
        copies.setdefault(node.args[1], []).append(node)
    if not last:
        return nodes
    kept = nodes[: -len(last)]
    return [each for node in kept for each in (node, *copies.get(node, ()))]


def _last_copies(graph: Graph) -> Iterator[Node]:
    """Yield the final nodes that copy an operation's value to a placeholder, the last one first."""
    node = graph.output_node().prev
    while node.target is torch.ops.aten.copy_.default and not node.users and len(node.args) == 2:
        target, value = node.args
        if not isinstance(target, Node) or target.op != "placeholder":
            return
        if not isinstance(value, Node) or value.op != "call_function":
            return
        if value.target is torch.ops.aten.copy_.default:
            return
        yield node
        node = node.prev


def unused_state(
    program: ExportedProgram, ends: Ends, places: SplitCallback | dict[Node, int]
) -> Iterator[tuple[Node, int]]:
    """Yield each unused placeholder of state, and the place that first uses the one before it."""
    used = {node for node in ends.state if node.users or node in ends.written}
    if len(used) == len(ends.state):
        return
    values = state_of(program)
    keys = {node: storage_of(values.get(str(spec.target))) for node, spec in ends.state.items()}
    known = {keys[node] for node in used}
    place = 0
    found: dict[Hashable, int] = {}  # storage -> place, which all names of the storage get
    for node in ends.state:
        place = min((places[user] for user in node.users if user in places), default=place)
        if keys[node] not in known:
            yield node, found.setdefault(keys[node], place)
