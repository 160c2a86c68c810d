"""Open the page about programs in a browser, or show it in the cell of a notebook."""

from __future__ import annotations

import html
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fxpress._base.errors import UnsupportedError
from fxpress._base.observing.text import printable
from fxpress._files.archive.files import write_file
from fxpress._tools.view.page import page_of
from fxpress._tools.view.sources import Source, names_of, source_of

_HEIGHT = 640  # pixels of a page in a notebook
FRAME = (
    '<iframe sandbox="allow-scripts" srcdoc="{}" width="100%" height="{}" frameborder="0"></iframe>'
)


def sources_of(programs: Sequence[Any]) -> list[Source]:
    """Return the sources of paths and ExportedPrograms, with distinct names."""
    return [source_of(each, name) for name, each in zip(names_of(programs), programs, strict=True)]


def write_page(sources: Sequence[Source], target: Path | None = None) -> Path:
    """Write the page into a file, a new temporary one by default, and return its path."""
    page = page_of(sources)
    if target is None:
        target = Path(tempfile.mkdtemp(prefix="fxpress-view-"), "page.html")
    write_file(target, page)
    return target


def open_page(path: Path) -> None:
    """Open a page in the user's browser; UnsupportedError if no browser is found."""
    if not webbrowser.open(path.absolute().as_uri()):
        raise UnsupportedError(f"no browser was found; the page is {path}")


def show_in_notebook(sources: Sequence[Source]) -> bool:
    """Show the page in the running cell; return whether this process serves a notebook."""
    python = sys.modules.get("IPython")
    shell = None if python is None else python.get_ipython()
    if getattr(shell, "kernel", None) is None:
        return False
    from IPython.display import display

    frame = FRAME.format(html.escape(page_of(sources)), _HEIGHT)
    names = printable(", ".join(source.name for source in sources))
    display({"text/html": frame, "text/plain": f"a page about {names}"}, raw=True)
    return True
