"""Render pictures with the system's Graphviz, or with the program of the extra `draw`."""

from __future__ import annotations

import importlib.metadata
import shutil
import subprocess
from pathlib import Path
from typing import Any

import graphviz

from fxpress._base.errors import NoRendererError

# The name of a package and of its program, which is a port of Graphviz with the options of `dot`.
# docs/decisions/0001 explains why the extra `draw` has this package.
_PORT = "graphviz-pure"


class Picture(graphviz.Digraph):  # type: ignore[misc]
    """A graph that notebooks can show even without the system's Graphviz."""

    def _repr_mimebundle_(
        self, include: Any = None, exclude: Any = None, **options: Any
    ) -> dict[str, str]:
        if shutil.which("dot"):
            bundle: dict[str, str] = super()._repr_mimebundle_(include, exclude, **options)
            return bundle
        return {"image/svg+xml": svg_of(self.source)}


def svg_of(source: str) -> str:
    """Render DOT text as SVG; NoRendererError if no renderer is found, RuntimeError if it fails."""
    program = shutil.which("dot") or _find_port()
    if program is None:
        raise NoRendererError(
            'draw(format="svg") needs the program dot of Graphviz or the package graphviz-pure:'
            " pip install 'fxpress[draw]'"
        )
    command = [program, "-Kdot", "-Tsvg"]
    try:
        result = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    except OSError as error:
        raise RuntimeError(f"draw: the renderer {program} can't be started: {error}") from error
    if result.returncode:
        reason = result.stderr.decode(errors="replace").strip() or "no message"
        raise RuntimeError(f"draw: {program} ended with status {result.returncode}: {reason}")
    return result.stdout.decode()


def _find_port() -> str | None:
    """Return the path of graphviz-pure's program, which pip may have installed outside of PATH."""
    try:
        files = importlib.metadata.files(_PORT) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    installed = [Path(str(file.locate())) for file in files if file.name == _PORT]
    return next((str(path) for path in installed if path.is_file()), shutil.which(_PORT))
