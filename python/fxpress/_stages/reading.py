"""Read what planning needs to know of a program, once."""

from __future__ import annotations

import dataclasses

from torch.export import ExportedProgram
from torch.fx import Node

from fxpress._stages.ends import Ends
from fxpress._stages.writes import Storage, storages_of
from fxpress.partition._callback import operations


@dataclasses.dataclass(frozen=True)
class Reading:
    """The operations of a program's own graph, and what they touch.

    Attributes:
        program: the program.
        operations: in order.
        numbers: of each operation, its place in the order.
        sources: of each operation, the nodes whose values it takes.
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
    nodes = list(operations(program.graph_module))
    numbers = {node: number for number, node in enumerate(nodes)}
    sources = [node.all_input_nodes for node in nodes]
    return Reading(program, nodes, numbers, sources, Ends(program), storages_of(program.graph))
