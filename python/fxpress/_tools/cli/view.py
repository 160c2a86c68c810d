"""`fxpress view`: a page about programs in the browser or in a file, or their graphs in a file."""

from __future__ import annotations

from pathlib import Path

import click

from fxpress._base.observing.text import printable
from fxpress._tools.cli.output import naming
from fxpress._tools.view.model_explorer import write_graphs
from fxpress._tools.view.page import page_of
from fxpress._tools.view.show import open_page, write_page
from fxpress._tools.view.sources import names_of, source_of_file


def show(paths: list[Path], graphs: Path | None, page: Path | None, opens: bool | None) -> None:
    """Write the graphs of files, a page about them, or both.

    Args:
        paths: the files.
        graphs: the file for the graphs, if they are wanted.
        page: the file for the page; "-": the standard output; None: a temporary one, unless only
            graphs are wanted.
        opens: whether the browser opens the page; None: if it is a temporary file.

    Raises:
        fxpress.UnsupportedError: no browser was found.
        OSError: a file cannot be read, or a target cannot be written.
        InspectionError: a file holds no exported programs, or it is damaged.
    """
    is_printed = page == Path("-")
    if is_printed and opens:
        raise click.UsageError("--open needs a page in a file, and '--export -' prints it")
    sources = []
    for name, path in zip(names_of(paths), paths, strict=True):
        with naming(path):
            sources.append(source_of_file(path, name))
    if is_printed:
        click.echo(page_of(sources).encode(), nl=False)
    elif page is not None or graphs is None or opens:
        written = write_page(sources, page)
        click.echo(printable(str(written)))
        if opens or (opens is None and page is None):
            open_page(written)
    if graphs is not None:
        for path in write_graphs(sources, graphs):
            click.echo(printable(str(path)), err=is_printed)
