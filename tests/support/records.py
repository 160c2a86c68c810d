"""Convert an archive to a dict of records, and back; equal dicts give equal bytes."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping


def read_records(data: bytes) -> dict[str, bytes]:
    """Name -> content."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_records(records: Mapping[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file with these records, without the time at which it was made."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", kind) as file:
        for name, content in records.items():
            file.writestr(zipfile.ZipInfo(name), content, kind)
    return buffer.getvalue()
