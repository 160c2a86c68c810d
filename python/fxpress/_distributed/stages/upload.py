"""Put stages at a URL."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from fxpress._base.errors import UnsupportedError
from fxpress._distributed.stages.errors import StageError
from fxpress._files.remote.urls import is_archive, joined, opened_system, reaching, shown


@contextlib.contextmanager
def uploaded(url: str, last: str) -> Iterator[Path]:
    """Return a block that writes files here, which go to a URL at its end, that named `last` last.

    Raises StageError where there is something in the folder already.
    """
    if urlsplit(url).scheme in ("http", "https"):
        raise UnsupportedError(f"{shown(url)}: stages cannot be written by HTTP")
    system, place = opened_system(url)
    alone = is_archive(url)
    if not alone:
        with reaching(url):
            is_there = system.exists(place)
        if is_there:
            raise StageError(f"{shown(url)} is there already")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / (Path(urlsplit(url).path).name or "stages")
        yield target
        files = [target] if alone else sorted(target.iterdir(), key=lambda f: (f.name == last, f))
        with contextlib.ExitStack() as on_errors:
            for file in files:
                one = url if alone else joined(url, file.name)
                with reaching(one):
                    system.put_file(str(file), place if alone else opened_system(one)[1])
                on_errors.callback(_remove, one)
            on_errors.pop_all()


def _remove(url: str) -> None:
    system, place = opened_system(url)
    with contextlib.suppress(OSError), reaching(url):
        system.rm_file(place)
