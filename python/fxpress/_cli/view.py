"""`fxpress view`: programs in a browser, or their graphs in a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from fxpress._cli.output import naming
from fxpress._view.graphs import Graph, graphs_of_file
from fxpress._view.names import names_of
from fxpress._view.overlays import overlays_of


def write_graphs(paths: list[Path], target: Path) -> None:
    """Write the graphs of files as Model Explorer reads them, and their overlays beside.

    Raises:
        OSError: a file cannot be read, or the target cannot be written.
        InspectionError: a file holds no exported programs, or it is damaged.
    """
    graphs = []
    for name, found in _read(paths):
        if len(paths) > 1:
            for graph in found:
                graph["id"] = f"{name}: {graph['id']}"
                for node in graph["nodes"]:
                    if "subgraphIds" in node:
                        node["subgraphIds"] = [f"{name}: {g}" for g in node["subgraphIds"]]
        graphs += found
    texts = {target: json.dumps({"graphs": graphs})}
    for title, data in overlays_of(graphs).items():
        beside = target.with_name(f"{target.stem}.{title.replace(' ', '_')}.json")
        texts[beside] = json.dumps(data)
    for place, text in texts.items():
        place.write_text(text)


def show(paths: list[Path], port: int, opens_browser: bool) -> None:
    """Serve a page with the programs of files until the process is interrupted.

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
        OSError, InspectionError: as `write_graphs`.
    """
    from fxpress.view import config_of, serve

    serve(config_of(_read(paths)), port=port, no_open_in_browser=not opens_browser)


def _read(paths: list[Path]) -> Iterator[tuple[str, list[Graph]]]:
    """Yield a name of its own for each file, and its graphs; errors name the file."""
    for name, path in zip(names_of(paths), paths, strict=True):
        with naming(path):
            graphs = graphs_of_file(path)
        yield name, graphs
