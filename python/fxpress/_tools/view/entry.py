"""Implement the functions of `fxpress.view`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from fxpress._tools.view.model_explorer import plain_graph
from fxpress._tools.view.show import open_page, show_in_notebook, sources_of
from fxpress._tools.view.show import write_page as write_page_of
from fxpress._tools.view.sources import source_of


def graphs_of(program: Any) -> list[dict[str, Any]]:
    """Return a program's graphs as JSON values for Model Explorer. torch has no such function.

    Args:
        program: a path, or an ExportedProgram.

    Returns:
        The graph of each program, and of each body of an operator.

    Raises:
        OSError: the file cannot be read.
        fxpress.Error: the file does not contain exported programs, or is damaged; or the program
            cannot be serialized.
        TypeError: `program` is neither a path nor an ExportedProgram.

    Example:
        >>> import fxpress.view
        >>> (graph,) = fxpress.view.graphs_of(program)
        >>> "linear" in {node["label"] for node in graph["nodes"]}
        True
    """
    return [plain_graph(graph) for graph in source_of(program, "program").all_graphs()]


def write_page(target: str | bytes | os.PathLike[str], *programs: Any) -> None:
    """Write a page about programs. A browser opens it from disk, without a server.

    The page has a tree of modules and nodes, which shows parameters, bytes, operators and FLOPs. It
    has a search for nodes, and tables of inputs, outputs, symbols, weights and partitions. For two
    programs, it also shows their differences. torch has no such function.

    Args:
        target: the file to write.
        programs: paths and ExportedPrograms.

    Raises:
        OSError: a file cannot be read, or the target cannot be written.
        fxpress.Error, TypeError: as `graphs_of` raises them.

    Example:
        >>> import pathlib
        >>> import fxpress.view
        >>> fxpress.view.write_page("page.html", program)
        >>> pathlib.Path("page.html").read_text().startswith("<!DOCTYPE html>")
        True
    """
    write_page_of(sources_of(programs), Path(os.fsdecode(target)))


def show(*programs: Any) -> None:
    """Show a page about programs in the browser or in a notebook. torch has no such function.

    The function writes the page of `write_page` to a temporary file. For two programs, it begins
    with their differences. A notebook shows the page in a frame, which cannot access the notebook.

    Args:
        programs: paths and ExportedPrograms.

    Raises:
        fxpress.UnsupportedError: no browser was found; the error names the file.
        OSError, fxpress.Error, TypeError: as `graphs_of` raises them.

    Example:
        >>> import fxpress.view
        >>> fxpress.view.show(program)  # doctest: +SKIP
    """
    sources = sources_of(programs)
    if not show_in_notebook(sources):
        open_page(write_page_of(sources))
