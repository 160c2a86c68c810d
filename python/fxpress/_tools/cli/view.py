"""`fxpress view`: show programs as a page in the browser or in a file, or as graphs in a file."""

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
    """Write the graphs of files' programs to `graphs`, or a page about the programs, or both.

    If `page` is "-", print the page. If `page` is None, write the page to a temporary file, unless
    `graphs` is passed without `opens`. If `opens` is None, open the page only if it is temporary.
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
