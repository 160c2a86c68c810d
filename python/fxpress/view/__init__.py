"""Look at programs in a browser, with Model Explorer, or in a page that is a file. Beyond torch.

In scripts and in notebooks:

>>> import fxpress.view
>>> fxpress.view(program)  # doctest: +SKIP
>>> fxpress.view.export("page.html", program)

Model Explorer finds the adapter by itself, when it is told of this module::

    model-explorer --extensions=fxpress.view model.pt2

Nothing of a file runs, weights are not read, and torch is not needed for files. The extra `view`
brings Model Explorer, the extra `report` what writes pages.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fxpress._base.errors import UnsupportedError
from fxpress._tools.view.arguments import source_of
from fxpress._tools.view.comparison import compare
from fxpress._tools.view.graphs import Graph
from fxpress._tools.view.names import names_of
from fxpress._tools.view.overlays import Overlay, overlays_of
from fxpress._tools.view.page import page_of
from fxpress._tools.view.side_by_side import TITLE, align, differences_of
from fxpress._tools.view.sources import Source, tell_apart
from fxpress.view import data

__all__ = ["config", "data", "export", "graphs_of", "view"]

_log = logging.getLogger("fxpress")


def graphs_of(program: Any) -> list[Graph]:
    """Return the graphs of a program, as Model Explorer reads them from JSON.

    torch has no such function.

    Args:
        program: a path, or an ExportedProgram.

    Returns:
        The graph of each program, and one for each body of an operator.

    Raises:
        OSError: the file cannot be read.
        fxpress.Error: it is no file of exported programs, or it is damaged; or the program cannot
            be serialized.
        TypeError: `program` is neither.

    Example:
        >>> import fxpress.view
        >>> (graph,) = fxpress.view.graphs_of(program)
        >>> "linear" in {node["label"] for node in graph["nodes"]}
        True
    """
    return source_of(program, "program").all_graphs()


def export(target: str | os.PathLike[str], *programs: Any) -> None:
    """Write a page about programs that opens from disk, without a server or a script.

    torch has no such function.

    It has the tree of modules with parameters, bytes, operators and FLOPs, tables of inputs,
    outputs, symbols and weights, the picture of partitions or modules, and for two programs their
    differences.

    Args:
        target: the file to write.
        programs: paths and ExportedPrograms.

    Raises:
        fxpress.UnsupportedError: the extra `report` is not installed.
        OSError: a file cannot be read, or the target cannot be written.
        fxpress.Error, TypeError: as `graphs_of` raises them.

    Example:
        >>> import pathlib
        >>> import fxpress.view
        >>> fxpress.view.export("page.html", program)
        >>> pathlib.Path("page.html").read_text().startswith("<!DOCTYPE html>")
        True
    """
    page = page_of([source_of(p, n) for n, p in zip(names_of(programs), programs, strict=True)])
    Path(target).write_text(page, encoding="utf-8")


def config(*programs: Any, overlays: Mapping[str, Overlay] | None = None) -> Any:
    """Return a configuration of Model Explorer with some programs, and data over their nodes.

    torch has no such function.

    Two programs are opened side by side. A node of one then leads to its counterpart in the other,
    and the overlay "difference" marks what they do not have in common.

    Args:
        programs: paths and ExportedPrograms.
        overlays: more data over the nodes of the first program by name, as `fxpress.view.data`
            makes it.

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
        OSError: a file cannot be read.
        fxpress.Error: it is no file of exported programs, or it is damaged; or the program cannot
            be serialized.
        TypeError: it is neither a path nor a program.

    Example:
        >>> import fxpress.view
        >>> made = fxpress.view.config(program)  # doctest: +SKIP
    """
    names = names_of(programs)
    sources = [source_of(program, name) for name, program in zip(names, programs, strict=True)]
    return config_of(sources, overlays)


def config_of(sources: Sequence[Source], overlays: Mapping[str, Overlay] | None = None) -> Any:
    """Return a configuration as `config`, for what `_sources.source_of` has returned.

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
    """
    _model_explorer()
    from fxpress._tools.view.config import Config

    made = Config()
    tell_apart(sources)
    more: list[dict[str, Overlay]] = [{} for _ in sources]
    if len(sources) == 2 and all(source.graphs for source in sources):
        made.panes = [(source.name, source.all_graphs()[0]["id"]) for source in sources]
        for side, difference in enumerate(_marked(*sources)):
            if difference:
                more[side][TITLE] = difference
    for title, overlay in (overlays or {}).items():
        more[0][title] = overlay if len(sources) == 1 else _of_outer_ids(sources[0], overlay)
    for number, source in enumerate(sources):
        made.graphs_list.append(json.dumps({"graphs": source.all_graphs()}))
        made.model_sources.append({"url": f"graphs://{source.name}/{number}"})
        for title, overlay in (overlays_of(source.graphs) | more[number]).items():
            made.add_node_data(title, json.dumps(overlay), model_name=source.name)
    return made


def _marked(first: Source, second: Source) -> tuple[Overlay, Overlay]:
    """Return the overlays of the differences; counterparts get the same ids."""
    compared = compare(first, second)
    for each in compared:
        if each.reason:
            _log.warning("the difference cannot be told: %s", each.reason)
    align(second, compared)
    return differences_of(first, second, compared)


def _of_outer_ids(source: Source, overlay: Overlay) -> Overlay:
    return {source.outer_id(graph_id): values for graph_id, values in overlay.items()}


def view(*programs: Any, overlays: Mapping[str, Overlay] | None = None, **options: Any) -> None:
    """Show programs in a browser, or in the cell of a notebook; two of them side by side.

    torch has no such function.

    Args:
        programs: paths and ExportedPrograms.
        overlays: more data over the nodes of the first program by name.
        options: passed to `model_explorer.visualize_from_config`, such as `port`.

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
        OSError: a file cannot be read.
        fxpress.Error: it is no file of exported programs, or it is damaged; or the program cannot
            be serialized.
        TypeError: it is neither a path nor a program.

    Example:
        >>> import fxpress.view
        >>> fxpress.view(program, port=8080)  # doctest: +SKIP
    """
    serve(config(*programs, overlays=overlays), **options)


def serve(made: Any, **options: Any) -> None:
    """Show what `config` or `config_of` has returned; options as for `view`."""
    _model_explorer().visualize_from_config(made, **options)


def _model_explorer() -> Any:
    try:
        import model_explorer
    except ImportError as missing:
        raise UnsupportedError(
            "fxpress.view needs Model Explorer: pip install 'fxpress[view]' brings it"
        ) from missing
    return model_explorer


class _Module(types.ModuleType):
    """This module: `fxpress.view(program)` calls it, once something has imported it."""

    def __call__(self, *programs: Any, **options: Any) -> None:
        view(*programs, **options)


sys.modules[__name__].__class__ = _Module
