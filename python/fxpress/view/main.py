"""Define the adapter that `model-explorer --extensions=fxpress.view model.pt2` loads."""

from __future__ import annotations

from typing import Any

from model_explorer import Adapter, AdapterMetadata, graph_builder

from fxpress._tools.view.graphs import graphs_by_program
from fxpress._tools.view.model_explorer import plain_graph
from fxpress._tools.view.nodes import Graph


class ProgramAdapter(Adapter):  # type: ignore[misc]
    """Turns files of exported programs into graphs, for Model Explorer."""

    metadata = AdapterMetadata(
        id="fxpress",
        name="fxpress (exported program)",
        description="Exported programs of PyTorch: read without running or unpickling anything",
        source_repo="",
        fileExts=["pt2"],
    )

    def convert(self, model_path: str, settings: dict[str, Any]) -> dict[str, Any]:
        """Return the graphs of a file, as objects of Model Explorer's classes.

        Raises:
            OSError: the file cannot be read.
            fxpress.Error: the file does not contain exported programs, or is damaged.
        """
        del settings  # unused: they are the settings of Model Explorer's page
        programs = graphs_by_program(model_path).values()
        return {"graphs": [_as_objects(graph) for graphs in programs for graph in graphs]}


class _Plain:
    """Wraps plain data, so that `dataclasses.asdict` in Model Explorer does not copy the data."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def __deepcopy__(self, memo: Any) -> Any:
        return self._data


def _as_objects(graph: Graph) -> Any:
    plain = plain_graph(graph)
    nodes, attributes = _Plain(plain["nodes"]), plain["groupNodeAttributes"]
    return graph_builder.Graph(plain["id"], nodes, groupNodeAttributes=attributes)
