"""Unpack deflated records of zip files. Imports nothing of torch."""

from __future__ import annotations

import zlib


class DamagedRecordError(ValueError):
    """A record cannot be unpacked."""


def inflate(data: bytes, size: int) -> bytes:
    """Return the bytes that were deflated to `data`.

    Args:
        data: the deflated bytes, without a header.
        size: the number of bytes before they were deflated.

    Raises:
        DamagedRecordError: `data` are not deflated bytes, or give another number of bytes.
    """
    try:
        unpacked = zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
    except zlib.error as e:
        raise DamagedRecordError(str(e)) from None
    if len(unpacked) != size:
        raise DamagedRecordError("its size is wrong")
    return unpacked
