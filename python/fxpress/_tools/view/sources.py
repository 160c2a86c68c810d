"""What is viewed: the programs of a file, or a program in memory."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence

from fxpress._tools.inspect.hashes import hash_nodes
from fxpress._tools.inspect.summary import Summary, summarize
from fxpress._tools.view.graphs import Graph, graphs_by_program


@dataclasses.dataclass
class Source:
    """Programs that are viewed together.

    Attributes:
        name: the name of the file, or of the program.
        graphs: name of a program -> its graph, then those of its operators' bodies.
        summary: tells what the file holds.
        hashes: tells for each program its hash and those of the nodes of its own graph. Raises
            fxpress.Error where something cannot be hashed.
    """

    name: str
    graphs: dict[str, list[Graph]]
    summary: Callable[[], Summary]
    hashes: Callable[[], dict[str, tuple[str, list[bytes]]]]

    def all_graphs(self) -> list[Graph]:
        """Return the graphs of all programs."""
        return [graph for graphs in self.graphs.values() for graph in graphs]

    def outer_id(self, graph_id: str) -> str:
        """Return the id of a graph among those of several sources."""
        return f"{self.name}: {graph_id}"

    def tell_apart(self) -> None:
        """Let the ids of the graphs be other than those of other sources."""
        for graph in self.all_graphs():
            graph["id"] = self.outer_id(graph["id"])
            for node in graph["nodes"]:
                if "subgraphIds" in node:
                    node["subgraphIds"] = [self.outer_id(inner) for inner in node["subgraphIds"]]


def source_of_file(path: str | os.PathLike[str], name: str) -> Source:
    """Return a file to be viewed.

    Raises:
        OSError: the file cannot be read.
        InspectionError: it is no file of exported programs, or it is damaged.
    """
    graphs = graphs_by_program(path)
    return Source(name, graphs, lambda: summarize(path), lambda: hash_nodes(path))


def tell_apart(sources: Sequence[Source]) -> None:
    """Give the graphs of several sources ids of their own; those of one keep theirs."""
    for source in sources if len(sources) > 1 else ():
        source.tell_apart()
