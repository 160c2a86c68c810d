"""The record of an archive that names the file of weights beside it."""

from __future__ import annotations

import json
import os

_SUFFIX = ".safetensors"


def read_place(text: str) -> tuple[str, str]:
    """Return the name of the file, and the number of the save that it has to be of.

    Raises:
        ValueError: the record is damaged, or the file is not beside the archive.
    """
    try:
        said = json.loads(text)
        file, number = str(said["file"]), str(said["number"])
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise ValueError(f"the record of the weights' file is damaged: {e!r}") from None
    if os.path.basename(file) != file or not file.endswith(_SUFFIX) or "\0" in file:
        raise ValueError(f"the weights are not beside the archive, but in {file!r}")
    return file, number
