"""The record of an archive that names the sidecar file with the weights."""

from __future__ import annotations

import json
import os
import unicodedata
from typing import NamedTuple

from fxpress._files.format.fields import load_json

_SUFFIX = ".safetensors"
_LONGEST = 1 << 12  # characters in the record
_LONGEST_NAME = 255  # bytes of a name, in all file systems


def is_file_name(text: str, suffix: str = "") -> bool:
    """Return whether a text is a plain name of a file in the same folder."""
    try:
        is_long = len(os.fsencode(text)) > _LONGEST_NAME
    except UnicodeEncodeError:
        return False
    is_plain = all(unicodedata.category(character) != "Cc" for character in text)
    is_path = os.path.basename(text) != text or text in ("", ".", "..")
    return is_plain and not is_path and not is_long and text.endswith(suffix)


class Place(NamedTuple):
    """The contents of the record: a sidecar file with the weights of a program."""

    file: str  # its name
    number: str  # of the save; the file contains it, too

    def text(self) -> str:
        """Return the text of the record."""
        return json.dumps(self._asdict())


def read_place(text: str) -> Place:
    """Parse the record; ValueError if it is damaged or names a file in another folder."""
    if len(text) > _LONGEST:
        raise ValueError("the record of the weights' file is damaged: it is too long")
    try:
        fields = load_json(text)
        file, number = str(fields["file"]), str(fields["number"])
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"the record of the weights' file is damaged: {e!r}") from None
    if not is_file_name(file, _SUFFIX):
        raise ValueError(f"expected a file of weights next to the archive, found {file!r}")
    return Place(file, number)
