"""Look at programs in a browser, with Model Explorer. Beyond torch::

    fxpress.view("model.pt2", program)   # in scripts and in notebooks

Model Explorer finds the adapter by itself, when it is told of this module::

    model-explorer --extensions=fxpress.view model.pt2

Nothing of a file runs, weights are not read, and torch is not needed for files. The extra `view`
brings Model Explorer.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Iterable
from typing import Any

from fxpress._errors import UnsupportedError
from fxpress._view.graphs import Graph, graphs_of_file, graphs_of_text
from fxpress._view.names import names_of
from fxpress._view.overlays import overlays_of


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
    if isinstance(program, (str, os.PathLike)):
        return graphs_of_file(program)
    from fxpress._arguments import check_program
    from fxpress._serde.program import encode

    check_program(program, "program")
    text, _ = encode(program, None)
    return graphs_of_text(text, "model", "the program")


def _model_explorer() -> Any:
    try:
        import model_explorer
    except ImportError as missing:
        raise UnsupportedError(
            "fxpress.view needs Model Explorer: pip install 'fxpress[view]' brings it"
        ) from missing
    return model_explorer


def config(*programs: Any) -> Any:
    """Return a configuration of Model Explorer with some programs, and numbers over their nodes.

    torch has no such function.

    Args:
        programs: paths and ExportedPrograms.

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
        OSError, fxpress.Error, TypeError: as `graphs_of`.
    """
    return config_of(zip(names_of(programs), map(graphs_of, programs), strict=True))


def config_of(graphs_by_name: Iterable[tuple[str, list[Graph]]]) -> Any:
    """Return a configuration as `config`, for pairs of a program's name and its graphs.

    torch has no such function.

    Args:
        graphs_by_name: (name of a program, its graphs as of `graphs_of`).

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
    """
    made = _model_explorer().config()
    for number, (name, graphs) in enumerate(graphs_by_name):
        made.graphs_list.append(json.dumps({"graphs": graphs}))
        made.model_sources.append({"url": f"graphs://{name}/{number}"})
        for title, data in overlays_of(graphs).items():
            made.add_node_data(title, json.dumps(data), model_name=name)
    return made


def view(*programs: Any, **options: Any) -> None:
    """Show programs in a browser, or in the cell of a notebook. torch has no such function.

    Args:
        programs: paths and ExportedPrograms.
        options: passed to `model_explorer.visualize_from_config`, such as `port`.

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
        OSError, fxpress.Error, TypeError: as `graphs_of`.
    """
    serve(config(*programs), **options)


def serve(made: Any, **options: Any) -> None:
    """Show a configuration in a browser, or in the cell of a notebook.

    torch has no such function.

    Args:
        made: what `config` or `config_of` has returned.
        options: passed to `model_explorer.visualize_from_config`, such as `port`.
    """
    _model_explorer().visualize_from_config(made, **options)


class _Module(types.ModuleType):
    """This module: `fxpress.view(program)` calls it, once something has imported it."""

    def __call__(self, *programs: Any, **options: Any) -> None:
        view(*programs, **options)


sys.modules[__name__].__class__ = _Module
