"""Read what planning needs to know of a program, once."""

from __future__ import annotations

import dataclasses

from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._distributed.stages.ends import Ends
from fxpress._distributed.stages.order import operations_of
from fxpress._distributed.stages.unused import unused_state
from fxpress._distributed.stages.writes import Storage, storages_of
from fxpress._graphs.partition.callback import operations


@dataclasses.dataclass(frozen=True)
class Reading:
    """The operations of a program's own graph, and what they touch.

    Attributes:
        program: the program.
        operations: in the order of `operations_of`.
        numbers: of each operation, its place in the order.
        sources: of each operation, the nodes whose values it takes, and state that nothing uses,
            which goes where it does.
        ends: what the program takes and gives.
        storages: by the node that makes each.
    """

    program: ExportedProgram
    operations: list[Node]
    numbers: dict[Node, int]
    sources: list[list[Node]]
    ends: Ends
    storages: dict[Node, Storage]


def reading_of(program: ExportedProgram) -> Reading:
    """Return the reading of a program."""
    nodes = operations_of(program.graph_module)
    numbers = {node: number for number, node in enumerate(nodes)}
    sources = [node.all_input_nodes for node in nodes]
    ends = Ends(program)
    for node, number in unused_state(program, ends, numbers) if nodes else ():
        sources[number].append(node)
    storages = storages_of(program.graph)
    if nodes != list(operations(program.graph_module)):
        for storage in storages.values():
            storage.touching.sort(key=numbers.__getitem__)
    return Reading(program, nodes, numbers, sources, ends, storages)
