"""The checksum of a manifest, which is in it: its names and constants are results of programs."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

_FIELD, _NONE = "checksum", "0" * 64
_SEAL = re.compile(rb'"checksum": "([0-9a-f]{64})"')


def sealed(manifest: dict[str, Any]) -> str:
    """Return the text of a manifest with its checksum: the SHA-256 of the text with zeros for it.

    Args:
        manifest: what it says; its field "checksum" is set, before which no part has such a field.
    """
    manifest[_FIELD] = _NONE
    text = _text(manifest)
    manifest[_FIELD] = hashlib.sha256(text.encode()).hexdigest()
    return _text(manifest)


def _text(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=2) + "\n"


def is_damaged(data: bytes) -> bool:
    """Return whether a manifest is not the text that its checksum is of; older ones have none."""
    found = _SEAL.search(data)
    if found is None:
        return False
    begin, end = found.span(1)
    made = hashlib.sha256(data[:begin])
    made.update(_NONE.encode())
    made.update(data[end:])
    return made.hexdigest() != found[1].decode()
