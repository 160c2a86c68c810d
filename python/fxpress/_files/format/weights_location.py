"""Read and write the record with the name of the sidecar, a safetensors file of weights."""

from __future__ import annotations

import json
import os
import unicodedata
from typing import NamedTuple

from fxpress._files.format.fields import load_json

SUFFIX = ".safetensors"
_MOST_CHARACTERS = 1 << 12  # characters in the record
_MOST_NAME_BYTES = 255  # bytes of a file name; the limit of common file systems


def is_file_name(text: str, suffix: str = "") -> bool:
    """Return whether a text is a file name without a folder, and ends with `suffix`."""
    try:
        is_long = len(os.fsencode(text)) > _MOST_NAME_BYTES
    except UnicodeEncodeError:
        return False
    is_plain = all(unicodedata.category(character) != "Cc" for character in text)
    is_path = os.path.basename(text) != text or text in ("", ".", "..")
    return is_plain and not is_path and not is_long and text.endswith(suffix)


class Sidecar(NamedTuple):
    """The contents of the record. With them, a load finds and recognizes the sidecar file."""

    file: str  # the name of the sidecar file
    number: str  # a new random text for each save; the sidecar's metadata contains it, too

    def text(self) -> str:
        """Return the record as JSON."""
        return json.dumps(self._asdict())


def read_place(text: str) -> Sidecar:
    """Parse the record; ValueError if it is damaged, or the sidecar is in another folder."""
    if len(text) > _MOST_CHARACTERS:
        raise ValueError("the record of the weights' file is damaged: it is too long")
    try:
        fields = load_json(text)
        file, number = str(fields["file"]), str(fields["number"])
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"the record of the weights' file is damaged: {e!r}") from None
    if not is_file_name(file, SUFFIX):
        raise ValueError(f"expected a file of weights next to the archive, found {file!r}")
    return Sidecar(file, number)
