"""`fxpress view`: programs in a browser, their graphs in a file, or a page about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fxpress._tools.cli.output import naming
from fxpress._tools.view.comparison import compare
from fxpress._tools.view.names import names_of
from fxpress._tools.view.overlays import overlays_of
from fxpress._tools.view.page import page_of
from fxpress._tools.view.side_by_side import TITLE, differences_of, mapping_of
from fxpress._tools.view.sources import Source, source_of_file, tell_apart


def write_graphs(paths: list[Path], target: Path) -> None:
    """Write the graphs of files as Model Explorer reads them, and their overlays beside.

    Of two files the differences, and which nodes correspond, are written too.

    Raises:
        OSError: a file cannot be read, or the target cannot be written.
        InspectionError: a file holds no exported programs, or it is damaged.
    """
    sources = _read(paths)
    tell_apart(sources)
    beside: dict[str, dict[str, Any]] = {}
    if len(sources) == 2:
        first, second = sources
        compared = compare(first, second)
        differences = differences_of(first, second, compared)
        beside[TITLE] = {}
        for difference in differences:
            beside[TITLE] |= difference
        beside["counterparts"] = mapping_of(compared)
    graphs = []
    for source in sources:
        graphs += source.all_graphs()
        for title, data in overlays_of(source.graphs).items():
            beside.setdefault(title, {}).update(data)
    texts = {target: json.dumps({"graphs": graphs})}
    for title, data in beside.items():
        place = target.with_name(f"{target.stem}.{title.replace(' ', '_')}.json")
        texts[place] = json.dumps(data)
    for place, text in texts.items():
        place.write_text(text)


def write_page(paths: list[Path], target: Path) -> None:
    """Write a page about files that opens from disk; of two files it tells the differences.

    Raises:
        fxpress.UnsupportedError: the extra `report` is not installed.
        OSError, InspectionError: as `write_graphs`.
    """
    target.write_text(page_of(_read(paths)), encoding="utf-8")


def show(paths: list[Path], port: int, opens_browser: bool) -> None:
    """Serve a page with the programs of files until the process is interrupted.

    Raises:
        fxpress.UnsupportedError: Model Explorer is not installed.
        OSError, InspectionError: as `write_graphs`.
    """
    from fxpress.view import config_of, serve

    serve(config_of(_read(paths)), port=port, no_open_in_browser=not opens_browser)


def _read(paths: list[Path]) -> list[Source]:
    """Return the files, each with a name of its own; errors name the file."""
    sources = []
    for name, path in zip(names_of(paths), paths, strict=True):
        with naming(path):
            sources.append(source_of_file(path, name))
    return sources
