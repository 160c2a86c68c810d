"""What the directory of an archive says of a record. Imports nothing of torch."""

from __future__ import annotations

from typing import NamedTuple


class Record(NamedTuple):
    """The directory's entry for a record."""

    offset: int  # of its data in the archive, bytes
    stored: int  # bytes there
    size: int  # bytes when they are unpacked
    crc: int  # CRC-32 of the unpacked bytes
    is_deflated: bool
