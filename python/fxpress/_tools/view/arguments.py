"""Paths and programs in memory, as what is shown."""

from __future__ import annotations

import os
from typing import Any

from fxpress._tools.view.sources import Source, source_of_file


def source_of(program: Any, name: str) -> Source:
    """Return a path or an ExportedProgram to be viewed.

    Raises:
        OSError: the file cannot be read.
        fxpress.Error: it is no file of exported programs, or it is damaged; or the program cannot
            be serialized.
        TypeError: `program` is neither.
    """
    if isinstance(program, (str, os.PathLike)):
        return source_of_file(program, name)
    from fxpress._tools.view.programs import source_of_program

    return source_of_program(program, name)
